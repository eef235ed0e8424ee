"""Options of a command as a YAML file: `--config FILE.yaml`, `--print-config`.

A key is the long name of an option, without dashes at its start; MODEL is `models`. What is typed
comes before what the file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from tiltmeter.cli.help import OUTPUT
from tiltmeter.errors import InputError, UnknownNameError

#: Options that a file does not set.
NOT_IN_FILES = ("config", "print-config", "help")


def config_option() -> Any:
    """The option `--config`, which is read before all others."""
    return typer.Option(
        "--config",
        metavar="FILE",
        help="YAML file of these options, such as words: sobit; typed ones come first",
        rich_help_panel=OUTPUT,
        callback=_read,
        is_eager=True,
        show_default=False,
    )


def printed(ctx: typer.Context, **defaults: Any) -> str:
    """The options of a command as a file for `--config`.

    Parameters
    ----------
    ctx
        The command's context, with the values of its options.
    **defaults
        Values that the command chose itself, by option.
    """
    import yaml

    values = {name: ctx.params[param.name] for name, param in _params(ctx).items()} | defaults
    known = {name: _plain(value) for name, value in values.items() if value not in (None, [], ())}
    unset = ", ".join(sorted(set(values) - set(known)))
    body = yaml.safe_dump(known, sort_keys=True, allow_unicode=True, default_flow_style=None)
    return (
        f"# what `{ctx.command_path}` would run; as a file: --config FILE.yaml\n{body}"
        f"# not set: {unset}\n"
    )


def _read(ctx: typer.Context, path: Path | None) -> Path | None:
    if path is None or ctx.resilient_parsing:
        return path
    content = _content(path)
    params = _params(ctx)
    for name in content:
        if name not in params:
            raise UnknownNameError(f"option in {path}", str(name), params)
    ctx.default_map = {
        **(ctx.default_map or {}),
        **{
            str(params[name].name): _as_typed(name, value, params[name], path)
            for name, value in content.items()
            if value is not None
        },
    }
    return path


def _content(path: Path) -> Mapping[str, Any]:
    import yaml

    from tiltmeter.io.filesystems import no_file  # here: it imports pyarrow

    if not path.is_file():
        raise no_file(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise InputError(
            f"{path} is not YAML: {problem}", code="bad-file", value=str(path)
        ) from None
    if not isinstance(content, dict):
        raise InputError(
            f"{path} must map options to values, such as words: sobit",
            code="bad-file",
            value=str(path),
        )
    return content


def _params(ctx: typer.Context) -> dict[str, Any]:
    """The parameters of a command by their names in a file."""
    named = {}
    for param in ctx.command.get_params(ctx):
        long = [name.removeprefix("--") for name in param.opts if name.startswith("--")]
        name = long[0] if long else str(param.name)
        if name not in NOT_IN_FILES:
            named[name] = param
    return named


def _as_typed(name: str, value: Any, param: Any, path: Path) -> Any:
    """A value as the command line would have it: `data: {captions: SPEC}` is captions=SPEC."""
    if isinstance(value, dict):
        value = [f"{key}={text}" for key, text in _flat(value).items()]
    repeatable = param.multiple or param.nargs == -1
    if isinstance(value, list) != repeatable:
        if isinstance(value, list):
            raise InputError(
                f"{name} in {path} takes one value; got {value}", code="bad-option", value=name
            )
        value = [value]
    return value


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Nested keys joined by dots: the options of a probe."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}" if name else str(key): one for name, one in inner.items()}
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
