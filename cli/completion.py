"""`sk completion`: the script by which a shell completes the commands and options of `sk`.

The script calls `sk` with `_SK_COMPLETE` in its environment for each TAB. click then answers from
the commands themselves, so the script does not change when a command does.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "fish", "zsh")
VARIABLE = "_SK_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in SHELL: bash, fish or zsh.

    bash 4.4 or newer: add eval "$(sk completion bash)" to ~/.bashrc.

    fish: sk completion fish > ~/.config/fish/completions/sk.fish

    zsh: add eval "$(sk completion zsh)" to ~/.zshrc, after compinit.
    """
    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(click.get_current_context().find_root().command, {}, "sk", VARIABLE).source())
