"""This project as a measured system, through its public interface."""
