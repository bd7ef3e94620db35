"""`sk completion`: print the script with which a shell completes commands and options of `sk`.

For each TAB, the script runs `sk` with `_SK_COMPLETE` in the environment, and click prints the
completions. So the script does not change when a command changes.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "fish", "zsh")
VARIABLE = "_SK_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options of sk in SHELL: bash, fish or zsh.

    bash 4.4 or newer: add eval "$(sk completion bash)" to ~/.bashrc.

    fish: sk completion fish > ~/.config/fish/completions/sk.fish

    zsh: add eval "$(sk completion zsh)" to ~/.zshrc, after compinit.
    """
    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(click.get_current_context().find_root().command, {}, "sk", VARIABLE).source())
