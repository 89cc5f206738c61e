"""Routes that are declared: what of a table a service shows, which commands it takes, and who may."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from inspect import Parameter, Signature
from typing import Annotated, Any, Generic, Literal, get_args

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import BaseModel, create_model
from pydantic.alias_generators import to_snake

from shared.domain.decider import Decider
from shared.domain.message import Command
from shared.domain.row import Row, S
from shared.http import commands, history, lists, queries
from shared.http.changes import change_routes
from shared.http.commands import Accepted, Commands, Headers
from shared.http.guard import OwnedRouter
from shared.http.history import EventsQuery, History, PastEvents, PastReadingQuery
from shared.http.lines import Lines
from shared.http.lists import ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from shared.http.posting import posting
from shared.http.queries import Queries, ReadingQuery
from shared.tables.indexing import kinds
from shared.topology.topics import Table

Route = Literal["list", "row", "changes"]


@dataclass(frozen=True)
class Resource(Generic[S]):
    """One table over HTTP: a list, a row by key, its committed changes and, for an aggregate, its commands.

    path      the path of a row. It ends with the key's parameter, as in `/accounts/{account_id}`, and its first segment
              is the tag in the OpenAPI document.
    table     the table.
    view      (key, row) -> what is shown of the row; None to show nothing, as if there were no row. The class that it
              returns names the operations: an AccountView is got by `get_account`.
    filters   fields of the view that filter lists, each an index of the table. A number F is filtered by its bounds,
              F_min and F_max, both included, and orders lists, as `F` and downwards as `-F`; anything else is filtered
              by its value.
    sorts     further indexes that order lists: F as `F`, and downwards as `-F`.
    decider   the decider of an aggregate. If the topology has `history`, its past can be read, too.
    commands  the classes of commands that are posted, by the path that follows the key's. A command without fields
              takes no body, and one whose fields all have defaults may come without. `account.set_limits` is the
              operation `set_limits`. Lines of them may be posted together, to `/accounts/commands`.
    names     the names of operations, by the path in `commands`, where the command's own does not do.
    notes     what the OpenAPI document says of the operations, by the path in `commands`.
    owner     who may read and send: the key's parameter if a key is its owner's, or the field of rows and commands that
              names the owner (see OwnedRouter); None for everybody with the service's scope.
    key       the type of the key's parameter.
    without   the routes that it does not serve, such as "row" where the row has a route of its own.

    A route of another kind is FastAPI's: write a function (node, peers) → routers, and combine both by `together`.
    """

    path: str
    table: Table
    view: Callable[[str, Row[S]], BaseModel | None]
    _: KW_ONLY
    filters: Sequence[str] = ()
    sorts: Sequence[str] = ()
    decider: Decider[Any, Any, S] | None = None
    commands: Mapping[str, type[Command]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    owner: str | None = None
    key: Any = PathId
    without: Collection[Route] = ()

    def __call__(self, node: Node, peers: Peers) -> list[APIRouter]:
        """Its routers. Raises ValueError, with the fix, for what does not fit together."""
        router = self._router(node)
        if "list" not in self.without:
            self._add_list(router, node, peers)
        if "row" not in self.without:
            self._add_row(router, node, peers)
        routers = [*self._add_commands(router, node, peers), router]
        if "changes" in self.without:
            return routers
        owned = self.owner is not None if self.owner in (None, self._id) else self.owner
        return [*routers, change_routes(node, self.table, self.view, owned=owned or False, peers=peers)]

    @property
    def _collection(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def _id(self) -> str:
        return self.path.rpartition("/")[2].removeprefix("{").removesuffix("}")

    @property
    def _shown(self) -> type[BaseModel]:
        try:
            returned = Signature.from_callable(self.view, eval_str=True).return_annotation
        except (TypeError, ValueError):
            returned = None
        for kind in (returned, *get_args(returned)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                return kind
        name = getattr(self.view, "__name__", type(self.view).__name__)
        raise self._wrong(f"{name} does not say what it shows", "annotate it with `-> SomeView | None`")

    @property
    def _place(self) -> dict[str, Any]:
        return {"prefix": self._collection, "tags": [self.path.split("/")[1]]}

    def _router(self, node: Node) -> APIRouter:
        if not (self._collection.startswith("/") and self.path == f"{self._collection}/{{{self._id}}}"):
            raise self._wrong("does not end with the key's parameter", "write it as /accounts/{account_id}")
        if self.owner is None:
            return APIRouter(**self._place)
        if self.owner == self._id:
            return OwnedRouter(self.owner, **self._place)
        if self.table.ends and self.table.is_of_commands:
            found = f"rows of {self.table.name} end, so an id may be another owner's, who would see its history"
            raise self._wrong(found, f"name {self._id}, or leave out `ends` in topology.py")
        if not kinds(node.state_type(self.table), self.owner):
            found = f"owner={self.owner!r} is neither its parameter nor a field of the table {self.table.name}"
            raise self._wrong(found, f"name {self._id}, or the field that names the owner")
        return OwnedRouter(owned_by=self.owner, **self._place)

    def _add_list(self, router: APIRouter, node: Node, peers: Peers) -> None:
        query = self._list_query()
        page = Lists(node, peers, self.table, self.view, query).page
        name = f"list_{self._collection.rpartition('/')[2]}"
        endpoint = _endpoint(name, page, query=_query(query))
        router.add_api_route("", endpoint, response_model=Page, responses=lists.RESPONSES)

    def _list_query(self) -> type[ListQuery]:
        shown, orders = self._shown, [*self.sorts]
        parameters: dict[str, Any] = {}
        for name in self.filters:
            if name not in shown.model_fields:
                raise self._wrong(f"{shown.__name__} has no field {name!r}", "filter by a field that the view shows")
            found = shown.model_fields[name]
            kind: Any = Annotated[found.annotation, *found.metadata] if found.metadata else found.annotation
            parameter: Any = (kind | None, None)
            if kinds(shown, name) & {"integer", "number"}:
                parameters |= {f"{name}_min": parameter, f"{name}_max": parameter}
                orders += [name, f"-{name}"]
            else:
                parameters[name] = parameter
        if orders:
            parameters["order"] = (Literal["id", *orders], "id")
        return create_model(f"{_noun(shown)}List", __base__=ListQuery, **parameters)

    def _add_row(self, router: APIRouter, node: Node, peers: Peers) -> None:
        shown, name = self._shown, f"get_{to_snake(_noun(self._shown))}"
        if self.decider is None or node.topology.history is None:
            reads = Queries(node, peers, self.table, self.view)
            endpoint = self._of_key(name, reads.by_id, reading=ReadingQuery)
            router.add_api_route(f"/{{{self._id}}}", endpoint, response_model=shown, responses=queries.RESPONSES)
            return
        past = History(node, peers, self.table, self.view, self.decider)
        endpoint = self._of_key(name, past.by_id, reading=PastReadingQuery)
        router.add_api_route(f"/{{{self._id}}}", endpoint, response_model=shown, responses=history.RESPONSES)
        endpoint = self._of_key("get_events", past.events, query=_query(EventsQuery))
        router.add_api_route(
            f"/{{{self._id}}}/events", endpoint, response_model=PastEvents, responses=history.RESPONSES
        )

    def _add_commands(self, router: APIRouter, node: Node, peers: Peers) -> list[APIRouter]:
        """Also returns a router for many at once, to be matched first: the path of an aggregate fits its path, too."""
        if not self.commands:
            return []
        decider = self.decider
        if decider is None or not self.table.is_of_commands:
            fix = "give it decider=, and the table that the decider's aggregate fills"
            raise self._wrong("it takes commands, and has no decider of its table", fix)
        intake = Commands(node, peers, decider, self.table, path=self._collection)
        if unknown := {*self.names, *self.notes} - {*self.commands}:
            raise self._wrong(f"no command is posted to {sorted(unknown)}", "name a path of `commands`")
        if foreign := {*self.commands.values()} - {*decider.commands}:
            names = ", ".join(sorted(each.__name__ for each in foreign))
            raise self._wrong(f"its decider does not know {names}", "add it to the decider's `commands`")
        for path, command in self.commands.items():
            self._add_post(router, path, command, intake)
        intake.add_outcome_route(router, self._id)
        types = list(dict.fromkeys(self.commands.values()))
        many = OwnedRouter(owned_by=self.owner, **self._place) if self.owner else APIRouter(**self._place)
        Lines(intake, peers, types, owned_by_id=self.owner == self._id).add_route(many)
        return [many]

    def _add_post(self, router: APIRouter, path: str, command: type[Command], intake: Commands) -> None:
        async def submit(request: Request, key: str, headers: Any, body: Command | None = None) -> Response:
            return await intake.submit(request, key, command() if body is None else body, headers)

        takes: dict[str, Any] = {"body": _body(command)} if command.model_fields else {}
        name = self.names.get(path, command.TYPE.rpartition(".")[2])
        router.add_api_route(
            f"/{{{self._id}}}/{path}" if path else f"/{{{self._id}}}",
            self._of_key(name, submit, headers=Headers, **takes),
            methods=["POST"],
            status_code=201,
            response_model=Accepted,
            responses=commands.RESPONSES,
            description=self.notes.get(path, ""),
            route_class_override=posting(command),  # type: ignore[arg-type]  # it is only called
        )

    def _of_key(self, name: str, answer: Callable[..., Awaitable[Response]], **takes: Any) -> Callable[..., Any]:
        async def with_key(request: Request, **given: Any) -> Response:
            return await answer(request, str(given.pop(self._id)), **given)

        return _endpoint(name, with_key, **{self._id: self.key}, **takes)

    def _wrong(self, found: str, fix: str) -> ValueError:
        return ValueError(f"{self.path}: {found}; fix: {fix}")


def _endpoint(name: str, answer: Callable[..., Awaitable[Response]], **takes: Any) -> Callable[..., Any]:
    """A function called `name` of the request and of `takes`, annotations by parameter, as FastAPI reads them."""

    async def endpoint(**given: Any) -> Response:
        return await answer(**given)

    parameters = {"request": Request, **takes}
    signature = Signature(
        [Parameter(each, Parameter.KEYWORD_ONLY, annotation=kind) for each, kind in parameters.items()],
        return_annotation=Response,
    )
    endpoint.__name__ = name
    endpoint.__signature__ = signature  # type: ignore[attr-defined]
    return endpoint


def _query(model: type[BaseModel]) -> Any:
    return Annotated[model, Query()]


def _body(command: type[Command]) -> Any:
    needed = any(each.is_required() for each in command.model_fields.values())
    return command if needed else Annotated[command | None, Body(default_factory=command)]


def _noun(view: type[BaseModel]) -> str:
    return view.__name__.removesuffix("View")
