"""The project itself as a measured system, through its public interface."""
