"""The commands of docs/guides/containers.md lead from nothing to a running task."""

from __future__ import annotations

import subprocess
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pytest

from tests.containers.images import BASE, ROOT, Container
from tests.containers.machine import Machine
from tests.docs.pages import blocks
from tests.docs.test_pages import fits

if TYPE_CHECKING:
    from pathlib import Path

    from tests.containers.images import ImageStore, MountedImage
    from tests.docs.pages import Block

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE: Final = "docs/guides/containers.md"
ENGINES: Final = ("docker", "kubectl")


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a block and what the page shows below each."""
    text = block.text.replace("\\\n", " ")
    found = [part.partition("\n") for part in text.split("$ ") if part.strip()] if text.startswith("$ ") else []
    return [(command.strip(), shown) for command, _, shown in found]


def follow(machine: Machine, section: str) -> int:
    """Run the commands of a section, compare what they print, and return how many there were."""
    lines = (ROOT / PAGE).read_text(encoding="utf-8").splitlines()
    begin = lines.index(f"## {section}") + 1
    end = next((at for at, line in enumerate(lines, 1) if at > begin and line.startswith("## ")), len(lines))
    count = 0
    for block in blocks(PAGE):
        if block.language != "console" or not begin < block.line < end:
            continue
        for by_engine, group in groupby(commands(block), key=lambda typed: typed[0].startswith(ENGINES)):
            typed = list(group)
            count += len(typed)
            if by_engine:
                for command, shown in typed:
                    printed = machine.run(command)
                    assert not shown or fits(printed, shown), f"{command} printed\n{printed}\n{machine.describe()}"
            else:  # they share variables
                script = "\n".join(["set -eu", *(command for command, _ in typed)])
                subprocess.run(["bash", "-c", script], cwd=machine.project, check=True)
    return count


def test_image_with_agents(store: ImageStore, tmp_path: Path) -> None:
    """The guide's Dockerfile adds a library and a module to the image, and `orc` finds both."""
    (dockerfile,) = [block.text for block in blocks(PAGE) if block.language == "dockerfile"]
    (tmp_path / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("pluggy\n", encoding="utf-8")
    agents = "import pluggy\n" + (ROOT / "examples" / "my_agents.py").read_text(encoding="utf-8")
    (tmp_path / "my_agents.py").write_text(agents, encoding="utf-8")
    with store.locked():
        index = ("--volume", f"{store.fetch_wheels()}:/wheels:ro", "--volume", f"{store.pip_conf()}:/etc/pip.conf:ro")
        options = ("--isolation", "chroot", "--format", "docker", "--layers", "--build-arg", f"BASE={BASE}", *index)
        store.call("build", *options, "--tag", "with-agents", str(tmp_path))
    with (
        store.mounted("with-agents") as image,
        Container(image, environ={"ORC_REDIS__URL": "redis://127.0.0.1:1/0"}) as container,
    ):
        container.actor.wait_output("worker_waits_for_redis", timeout_s=30)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what the commands use of a checkout."""
    for name in ("compose.yaml", "config", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for folder in (tmp_path, *tmp_path.parents[:2]):  # user 65532 reads files below it
        folder.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("sections", "count"),
    [
        pytest.param(["Run it with an engine"], 9, id="engine"),
        pytest.param(["Compose"], 10, id="compose"),
        pytest.param(["Kubernetes"], 7, id="kubernetes"),
    ],
)
def test_from_nothing_to_a_task(image: MountedImage, project: Path, sections: list[str], count: int) -> None:
    """Every command works, the task gets its result, and every container ends in its time."""
    with Machine(image, project) as machine:
        if sections == ["Kubernetes"]:  # which says: make the secrets as for compose
            passwords = next(block for block in blocks(PAGE) if "openssl" in block.text)
            script = "\n".join(command for command, _ in commands(passwords))
            subprocess.run(["bash", "-euc", script], cwd=project, check=True)
        assert sum(follow(machine, section) for section in sections) == count
        machine.stop(list(reversed(machine.running)))
