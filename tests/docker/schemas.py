"""The schemas of Kubernetes, as a package of dataclasses has them: what its API server would refuse."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

OF_OBJECTS = {"apiVersion", "kind"}


def problems(found: Mapping[str, Any], *, is_patch: bool = False) -> list[str]:
    """Return what is wrong with an object: fields that are unknown, missing, or of a wrong type.

    A patch may lack fields.
    """
    group, _, version = found["apiVersion"].rpartition("/")
    folder = f"apis_{group.replace('.', '_')}_{version}" if group else f"api_{version}"
    module = import_module(f"kube_models.{folder}.io.k8s.api.{group.partition('.')[0] or 'core'}.{version}")
    kind = found["kind"]
    inside = {key: value for key, value in found.items() if key not in OF_OBJECTS}
    return list(_problems(inside, getattr(module, kind), kind, is_patch))


def _problems(value: Any, kind: Any, path: str, is_patch: bool) -> Iterator[str]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        yield from _problems_of_fields(value, kind, path, is_patch)
    elif origin in {Union, UnionType}:
        options = [list(_problems(value, one, path, is_patch)) for one in arguments if one is not NoneType]
        if all(options):
            yield from max(options, key=len)
    elif origin in {list, dict} and isinstance(value, origin):
        for key, each in enumerate(value) if origin is list else value.items():
            yield from _problems(each, arguments[-1], f"{path}.{key}", is_patch)
    elif kind is not Any:
        wanted = origin or kind
        if not isinstance(value, wanted) or isinstance(value, bool) is not (wanted is bool):
            yield f"{path} is no {wanted.__name__}"


def _problems_of_fields(value: Any, kind: Any, path: str, is_patch: bool) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path} is no map"
        return
    hints = get_type_hints(kind)
    known = {each.metadata.get("original_name", each.name): each for each in fields(kind) if each.init}
    for name, each in value.items():
        if name in known:
            yield from _problems(each, hints[known[name].name], f"{path}.{name}", is_patch)
        else:
            yield f"{path}.{name} is unknown"
    for name, each in known.items():
        is_required = each.default is MISSING and each.default_factory is MISSING
        if is_required and name not in value and not is_patch:
            yield f"{path}.{name} is missing"
