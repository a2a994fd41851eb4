# SPDX-License-Identifier: Apache-2.0
"""What gradus.jobs.train is given becomes the words of a command: a function, a component of
Kubeflow Pipelines, or a command, with parameters."""
import __future__

import builtins
import difflib
import dis
import inspect
import json
import os
import textwrap
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Union

from ._run import FOLLOWING
from .errors import InvalidError

_WORD_BYTES = 128 << 10  # Linux takes no longer word on a command line

# Lines of the function stand in tracebacks, since linecache has them. 76: the launcher looks for
# the rank that failed first.
_PROGRAM = """\
import json, linecache, sys, traceback
source = {source!r}
linecache.cache[{file!r}] = (len(source), None, source.splitlines(True), {file!r})
names = {{"__name__": "__main__"}}
exec(compile(source, {file!r}, "exec", {flag}, True), names)
try:
    names[{name!r}](**json.loads({parameters!r}))
except Exception as error:
    traceback.print_exception(type(error), error, error.__traceback__.tb_next)
    while error and str(type(error)) not in {follows!r}:
        error = error.__cause__
    sys.exit(76 if error else 1)
"""

Specification = Union[Callable[..., Any], str, Mapping[str, Any], Sequence[str]]


def refuse(sentence: str) -> InvalidError:
    return InvalidError(sentence, operation="train")


def words_of(specification: Specification, parameters: Mapping[str, Any], python: str) -> List[str]:
    """The command. `python` runs a function."""
    if callable(specification):
        return [python, "-c", _check_length(program_of(specification, parameters),
                                            specification.__name__)]
    if isinstance(specification, (str, os.PathLike)):
        specification = _read_component(os.fspath(specification))
    if isinstance(specification, Mapping):
        return _words_of_component(specification, parameters)
    words = [os.fspath(word) for word in specification]
    if not words:
        raise refuse("train_specification is an empty command")
    for name, value in parameters.items():
        words += [f"--{name}", _text(name, value)]
    return words


def _check_length(word: str, name: str) -> str:
    if len(word.encode()) >= _WORD_BYTES:
        raise refuse(f"{name} with its parameters has {len(word.encode()) >> 10} KiB, and a job "
                     f"takes {_WORD_BYTES >> 10}; let it read large data from a file or a volume")
    return word


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses a name that is not known, with the nearest one."""
    known = list(known)
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            raise refuse(f"{what} has no \"{name}\"; " + (
                f"did you mean \"{nearest[0]}\"?" if nearest else
                f"it has {', '.join(known)}" if known else "it takes none"))


def _text(name: str, value: Any) -> str:
    """As it stands on a command line: numbers and texts as they are, all else as JSON."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    return _json(name, value)


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise refuse(f"the parameter {name} is a {type(value).__name__}, which JSON cannot carry: "
                     f"{error}") from None


# ---- Functions -----------------------------------------------------------------------------------

def program_of(fn: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """A Python program that calls the function. Only its text travels, so that neither this module
    nor the same Python is needed where it runs."""
    if not isinstance(fn, types.FunctionType):
        raise refuse(f"{fn!r} has no text that can travel; give a function that is written in "
                     "Python with def")
    name = fn.__name__
    try:
        source = textwrap.dedent(inspect.getsource(fn))
    except (OSError, TypeError) as error:
        raise refuse(f"the text of {name} is not known ({error}); define it in a file or in a cell "
                     "of a notebook") from None
    if not source.startswith("def "):
        raise refuse(f"{name} begins with {source.split(None, 1)[0]}; a function becomes a job "
                     "that begins with def, without decorators")
    _check_parameters(fn, parameters)
    outside = sorted(_names_outside(fn))
    if outside:
        raise refuse(f"{name} uses {', '.join(outside)} from outside of itself, which does not "
                     "travel with it; import and define inside of the function, or pass it by "
                     "train_parameters")
    texts = ", ".join(f"{json.dumps(key)}: {_json(key, value)}" for key, value in
                      parameters.items())
    return _PROGRAM.format(source=source, file=f"<{name}>", name=name, parameters=f"{{{texts}}}",
                           follows=[str(one) for one in FOLLOWING],
                           flag=__future__.annotations.compiler_flag)


def _check_parameters(fn: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    known = inspect.signature(fn).parameters.values()
    named = [one.name for one in known if one.kind in (one.POSITIONAL_OR_KEYWORD,
                                                       one.KEYWORD_ONLY)]
    if not any(one.kind == one.VAR_KEYWORD for one in known):
        check_names(f"the function {fn.__name__}", parameters, named)
    missing = [one.name for one in known if one.name in named and one.default is one.empty
               and one.name not in parameters]
    if missing:
        raise refuse(f"the function {fn.__name__} needs {', '.join(missing)}, which "
                     f"train_parameters lacks")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names_outside(fn: Any) -> Set[str]:
    """Names that only the module or the function around it has."""
    loaded, stored = set(fn.__code__.co_freevars), {fn.__name__}
    for code in _codes(fn.__code__):
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                loaded.add(step.argval)
            elif step.opname in ("STORE_GLOBAL", "STORE_NAME"):
                stored.add(step.argval)
    return {name for name in loaded - stored
            if not hasattr(builtins, name) and name not in ("__name__", "__class__")}


# ---- Components of Kubeflow Pipelines ------------------------------------------------------------

def _read_component(text: str) -> Mapping[str, Any]:
    """The YAML that func_to_component_text makes, or a file with it."""
    if "\n" not in text and not text.lstrip().startswith("{"):
        if not text.endswith((".yaml", ".yml", ".json")):
            raise refuse(f"train_specification is the text \"{text[:80]}\"; it is a function, a "
                         "component (its text, or a file that ends with .yaml), or a command as a "
                         "list: [\"python3\", \"train.py\"]")
        try:
            with open(text, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise refuse(f"the component {text} cannot be read: {error.strerror}") from None
    try:
        document = json.loads(text)
    except ValueError:
        try:
            import yaml
        except ImportError:
            raise refuse("a component in YAML needs PyYAML (Debian: python3-yaml); give it as JSON "
                         "or as a dict") from None
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise refuse(f"the component is no YAML: {error}") from None
    if not isinstance(document, Mapping):
        raise refuse(f"the component is a {type(document).__name__}; it is a mapping with "
                     "implementation.container.command")
    return document


def _declared(component: Mapping[str, Any]) -> Dict[str, Mapping[str, Any]]:
    return {one["name"]: one for side in ("inputs", "outputs") for one in component.get(side) or []}


def _words_of_component(component: Mapping[str, Any],
                        parameters: Mapping[str, Any]) -> List[str]:
    name = component.get("name", "the component")
    try:
        container = component["implementation"]["container"]
        templates = [*(container.get("command") or []), *(container.get("args") or [])]
        declared = _declared(component)
    except (AttributeError, KeyError, TypeError):
        raise refuse(f"{name} has no implementation.container with a command, or an input without "
                     "a name") from None
    if not templates:
        raise refuse(f"{name} has neither a command nor args")
    check_names(f"the component {name}", parameters, declared)
    values = {key: _text(key, value) for key, value in parameters.items()}
    for key, one in declared.items():
        if key not in values and one.get("default") is not None:
            values[key] = _text(key, one["default"])
    return [_check_length(word, name) for template in templates
            for word in _fill(template, values, parameters, name)]


def _fill(template: Any, values: Mapping[str, str], given: Mapping[str, Any],
          name: str) -> List[str]:
    """The words of an entry of command or args."""
    if not isinstance(template, Mapping):
        return [str(template)]
    (kind, inner), = template.items() if len(template) == 1 else [("", None)]
    if kind in ("inputValue", "inputPath", "outputPath"):
        if inner not in values:
            raise refuse(f"{name} needs {inner}, which train_parameters lacks")
        return [values[inner]]
    if kind == "concat":
        return ["".join(word for one in inner for word in _fill(one, values, given, name))]
    if kind == "if":
        branch = inner.get("then" if _holds(inner["cond"], values, given) else "else") or []
        return [word for one in branch for word in _fill(one, values, given, name)]
    raise refuse(f"{name} has an entry {json.dumps(template)[:120]}, which is none of inputValue, "
                 "inputPath, outputPath, concat and if")


def _holds(condition: Any, values: Mapping[str, str], given: Mapping[str, Any]) -> bool:
    if isinstance(condition, Mapping):
        if "isPresent" in condition:
            return condition["isPresent"] in given
        condition = values.get(condition.get("inputValue"), "")
    return str(condition).lower() == "true"
