"""A party's table encoder: fitted on its training rows only, saved as JSON.

Shapes: n rows; dense, hashed, raw and encoded as the layout counts them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.config import TableOptions
from xvfl.data.code_numbers import MAX_ROWS, add_code_warnings
from xvfl.data.codecs import Codec, DateCodec, codec_from_dict, codec_to_dict, parse_columns
from xvfl.data.column_stats import ColumnStats
from xvfl.data.differences import fit_differences
from xvfl.data.encoded import Encoded
from xvfl.data.images import ImageEncoder
from xvfl.data.label_leaks import spread_rows
from xvfl.data.parse import describe_table, mask_missing
from xvfl.data.schema import summarize
from xvfl.data.text import as_text
from xvfl.data.value_stats import FitLimits, sampling_keys
from xvfl.errors import InputError, unknown, warn
from xvfl.primitives.layout import Difference, Layout, NumberBins, bins_from_dict
from xvfl_serve.encoding.cells import NA_TEXTS, MissingCells
from xvfl_serve.encoding.columns import NOTES, Bools
from xvfl_serve.encoding.dates import ISO
from xvfl_serve.row_report import absent_columns

MIN_LIKENESS = 0.6
"""How alike two names of a column must be to suspect that it was renamed."""


class TableEncoder:
    """Encodes a party's table as numbers in [0, 1] and bucket codes, and decodes it.

    Use `fit`, `fit_chunks` or `from_dict` to build one.

    Parameters
    ----------
    party : str
        The party's name, for messages.
    codecs : iterable of Codec
        One for each column, in the table's order.
    na_values : sequence of str
        Cells that count as missing.
    left_out : mapping of str to str
        Columns without information, and the reason.
    bins : mapping of str to NumberBins, optional
        The bins of numbers, durations and dates, by column. Encoders of earlier versions have none.
    differences : iterable of Difference, optional
        Differences of correlated numbers. Encoders of earlier versions have none.

    Attributes
    ----------
    columns : list of str
        The encoded columns, in the table's order.
    layout : Layout
        The layout of the encoded features.
    codecs : list of Codec
        The codecs of the columns, in the order of the layout.
    missing : MissingCells
        The cells that count as missing.

    Examples
    --------
    >>> import pandas as pd
    >>> from xvfl.config import TableOptions
    >>> frame = pd.DataFrame({"age": [20, 40, None], "job": ["cook", "nurse", "cook"]})
    >>> encoder = TableEncoder.fit(frame, TableOptions(), party="bank")
    >>> encoder.encode(frame).values.tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    >>> encoder.encode(frame).observed.tolist()
    [[True, True], [True, True], [False, True]]
    """

    def __init__(
        self,
        party: str,
        codecs: Iterable[Codec],
        na_values: Sequence[str] = (),
        left_out: Mapping[str, str] | None = None,
        bins: Mapping[str, NumberBins] | None = None,
        differences: Iterable[Difference] = (),
    ) -> None:
        by_column = list(codecs)
        self.party = party
        self.na_values = tuple(na_values)
        self.missing = MissingCells.of(self.na_values)
        self.left_out = dict(left_out or {})
        self.columns = [codec.feature.name for codec in by_column]
        self.codecs = sorted(by_column, key=lambda codec: codec.feature.kind == "hashed")
        self.bins = dict(bins or {})
        features = tuple(codec.feature for codec in self.codecs)
        by_dense_column = tuple(
            self.bins.get(each.name, NumberBins()) if not place else NumberBins()
            for each in features
            if each.kind != "hashed"
            for place in range(each.width)
        )
        self.layout = Layout(
            features,
            bins=by_dense_column if self.bins else (),
            differences=tuple(differences),
        )

    @classmethod
    def fit(cls, frame: pd.DataFrame, options: TableOptions, party: str) -> "TableEncoder":
        """Fit on training rows.

        Parameters
        ----------
        frame : pandas.DataFrame
            The training rows, indexed by id.
        options : TableOptions
            Column types, values that count as missing, scaling.
        party : str
            The party's name, for messages.

        Returns
        -------
        TableEncoder

        Raises
        ------
        InputError
            An option names an unknown column, a number is infinite or cannot be parsed, or no
            column has two different values.

        Warns
        -----
        DataWarning
            Columns without information are left out.
        """
        return cls.fit_chunks([frame], options, party)

    @classmethod
    def fit_chunks(
        cls,
        chunks: Iterable[pd.DataFrame],
        options: TableOptions,
        party: str,
        limits: FitLimits | None = None,
    ) -> "TableEncoder":
        """Fit on training rows that arrive in chunks; `limits` bound the memory."""
        problems: list[str] = []
        first: list[pd.DataFrame] = []
        kept = _keep_first(chunks, first)
        columns, where = collect_stats(kept, options, party, limits, problems)
        fitted = fit_codecs(columns, problems)
        if problems:
            raise InputError(*problems)
        codecs = [each for each in fitted.values() if not isinstance(each, str)]
        left_out = {name: each for name, each in fitted.items() if isinstance(each, str)}
        summaries = [summarize(each, fitted[name]) for name, each in columns.items()]
        rows = first[0] if len(first) == 1 else pd.concat(first)
        parsed = parse_columns(rows.iloc[:MAX_ROWS], codecs, party, missing_cells(options))
        ambiguities = {
            each.name: each.warnings for each in add_code_warnings(parsed, summaries, options)
        }
        for name, texts in ambiguities.items():
            for text in texts:
                warn(f"{where}, column {name!r}: {text}")
        if not codecs:
            raise InputError(
                f"{where}: expected at least one column with two different values, but found none "
                f"in {len(fitted)}; check the table and the columns dropped"
            )
        unexplained = {name: reason for name, reason in left_out.items() if not ambiguities[name]}
        _warn_left_out(where, unexplained, options)
        fitted_bins = {each.name: columns[each.name].bins(each) for each in codecs}
        bins = {name: each for name, each in fitted_bins.items() if each is not None}
        encoder = cls(party, codecs, (*NA_TEXTS, *options.na_values), left_out, bins)
        encoded = encoder.encode(rows.iloc[spread_rows(np.arange(len(rows)), MAX_ROWS)])
        differences = fit_differences(encoder.layout, encoded.values, encoded.observed)
        encoder.layout = replace(encoder.layout, differences=differences)
        return encoder

    def encode(self, frame: pd.DataFrame, strict: bool = True) -> Encoded:
        """Encode rows.

        Parameters
        ----------
        frame : pandas.DataFrame
            Rows indexed by id, with the columns used in training; others are ignored.
        strict : bool, default=True
            Reject a table without one of these columns; otherwise the column counts as missing,
            with a note on each row.

        Returns
        -------
        Encoded
            Values, bucket codes, a mask of observed features, and notes on unusual cells.

        Raises
        ------
        InputError
            A column is absent, or a number is infinite or cannot be parsed.
        """
        absent = self.absent(frame.columns)
        if absent and strict:
            raise self._absent_error(frame, absent)
        n = len(frame)
        values = np.zeros((n, self.layout.dense), dtype=np.float32)
        codes = np.zeros((n, len(self.layout.hashed)), dtype=np.int64)
        observed = np.zeros((n, self.layout.raw), dtype=bool)
        notes: NDArray[np.object_] = np.full(n, absent_columns(absent), dtype=object)
        at = hashed = 0
        for number, codec in enumerate(self.codecs):
            feature = codec.feature
            if feature.name in absent:
                cells = pd.Series(np.nan, index=frame.index, name=feature.name)
            else:
                cells = mask_missing(frame[feature.name], self.missing)
            block = codec.encode(cells, self.party, self.missing)
            observed[:, number] = block.observed
            if feature.kind == "hashed":
                codes[:, hashed] = block.values
                hashed += 1
            else:
                values[:, at : at + feature.width] = block.values
                at += feature.width
            for kind, rows in block.notes.items():
                _add_note(notes, NOTES[kind].format(feature.name), rows)
        ids = as_text(frame.index.to_series()).tolist()
        return Encoded(ids, values, codes, observed, notes.tolist())

    def decode(
        self, encoded_columns: NDArray[Any], vectors: Mapping[str, NDArray[Any]]
    ) -> pd.DataFrame:
        """Decode rows to the table's columns, units and types.

        Parameters
        ----------
        encoded_columns : array of shape (n, encoded)
            Dense columns and embeddings of hashed columns, in the layout's order.
        vectors : mapping of str to array of shape (buckets, width)
            The learned embeddings of each hashed column.

        Returns
        -------
        pandas.DataFrame
        """
        columns: dict[str, pd.Series] = {}
        at = 0
        for codec in self.codecs:
            feature = codec.feature
            part = np.asarray(encoded_columns[:, at : at + feature.width], dtype=np.float64)
            columns[feature.name] = codec.decode(part, vectors)
            at += feature.width
        return pd.DataFrame({name: columns[name] for name in self.columns})

    @property
    def date_formats(self) -> dict[str, str]:
        """The formats of date columns that are not ISO 8601, such as 31/01/2020."""
        dates = [codec for codec in self.codecs if isinstance(codec, DateCodec)]
        return {each.name: each.format for each in dates if each.format != ISO}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        by_name = {codec.feature.name: codec for codec in self.codecs}
        bins = {name: asdict(each) for name, each in self.bins.items()}
        differences = [asdict(each) for each in self.layout.differences]
        return {
            "type": "table",
            "party": self.party,
            "na_values": list(self.na_values),
            "left_out": self.left_out,
            "codecs": [codec_to_dict(by_name[name]) for name in self.columns],
            **({"bins": bins} if bins else {}),
            **({"differences": differences} if differences else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TableEncoder":
        """Build an encoder from its JSON form."""
        codecs = [codec_from_dict(codec) for codec in data["codecs"]]
        bins = {name: bins_from_dict(each) for name, each in data.get("bins", {}).items()}
        differences = [Difference(**each) for each in data.get("differences", [])]
        return cls(data["party"], codecs, data["na_values"], data["left_out"], bins, differences)

    def absent(self, columns: Iterable[Any]) -> list[str]:
        """List the columns used in training that are not among `columns`."""
        present = set(map(str, columns))
        return [name for name in self.columns if name not in present]

    def renamed(self, columns: Iterable[Any]) -> dict[str, str]:
        """Map absent columns to the column of a similar name that training did not have."""
        known = {*self.columns, *self.left_out}
        new = {str(each).casefold(): str(each) for each in columns if str(each) not in known}
        found = {
            name: get_close_matches(name.casefold(), new, n=1, cutoff=MIN_LIKENESS)
            for name in self.absent(columns)
        }
        return {name: new[near[0]] for name, near in found.items() if near}

    def _absent_error(self, frame: pd.DataFrame, absent: list[str]) -> InputError:
        near = get_close_matches(absent[0], map(str, frame.columns), n=1, cutoff=0.0)
        hint = f" (nearest present: {near[0]!r})" if near else ""
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        named = ", ".join(map(repr, absent[:5])) + more
        return InputError(
            f"{describe_table(frame, self.party)}: expected the columns used in training, but "
            f"{named} not in the table{hint}; add or rename columns, "
            "with empty cells where values are missing"
        )


def collect_stats(
    chunks: Iterable[pd.DataFrame],
    options: TableOptions,
    party: str,
    limits: FitLimits | None,
    problems: list[str],
) -> tuple[dict[str, ColumnStats], str]:
    """Collect the statistics of each column, and the name of the table for messages.

    A column that cannot be read, and wrong options, are added to `problems`.
    """
    limits, where = limits or FitLimits(), ""
    columns: dict[str, ColumnStats] = {}
    missing = missing_cells(options)
    for number, frame in enumerate(chunks):
        if not number:
            where = describe_table(frame, party)
            problems += _wrong_options(frame.columns, options, party, where)
            names = [name for name in frame.columns if name not in options.drop]
            columns = {name: ColumnStats(name, options, party, limits, missing) for name in names}
        keys = sampling_keys(len(frame), number)
        for name in list(columns):
            count = len(problems)
            with InputError.collected(problems):
                columns[name].add(mask_missing(frame[name], missing), keys)
            if len(problems) > count:
                del columns[name]
    return columns, where


def missing_cells(options: TableOptions) -> MissingCells:
    """Return which cells of a table count as missing."""
    return MissingCells.of((*NA_TEXTS, *options.na_values))


def _keep_first(
    chunks: Iterable[pd.DataFrame], first: list[pd.DataFrame]
) -> Iterator[pd.DataFrame]:
    """Yield chunks; add the first ones, with at least `MAX_ROWS` rows in all, to a list."""
    for chunk in chunks:
        if sum(map(len, first)) < MAX_ROWS:
            first.append(chunk)
        yield chunk


def fit_codecs(columns: Mapping[str, ColumnStats], problems: list[str]) -> dict[str, Codec | str]:
    """Infer the kinds of columns; one that is not what its options say is added to `problems`."""
    fitted: dict[str, Codec | str] = {}
    for name, column in columns.items():
        with InputError.collected(problems):
            fitted[name] = column.codec()
    return fitted


def encoder_from_dict(data: Mapping[str, Any]) -> TableEncoder | ImageEncoder:
    """Build a table or image encoder from its JSON form."""
    if data["type"] not in ENCODERS:
        raise InputError(unknown("encoder type", str(data["type"]), ENCODERS))
    return ENCODERS[data["type"]].from_dict(data)


ENCODERS: dict[str, type[TableEncoder | ImageEncoder]] = {
    "table": TableEncoder,
    "image": ImageEncoder,
}


def _wrong_options(
    columns: Sequence[str] | pd.Index, options: TableOptions, party: str, where: str
) -> Iterator[str]:
    """Yield what is wrong with options: unknown columns, one column of two kinds."""
    kinds = options.kinds or {}
    for name in (*options.categorical, *options.numeric, *options.drop, *kinds):
        if name not in columns:
            yield f"{where}: {unknown('column', name, columns)}"
    given = {"categorical": options.categorical, "numeric": options.numeric, "kinds": kinds}
    for (first, names), (second, others) in combinations(given.items(), 2):
        both = sorted(set(names) & set(others))
        if both:
            yield (
                f"party {party!r}: column {both[0]!r} is named both in `{first}` and in "
                f"`{second}`; keep one of the two"
            )


def _warn_left_out(where: str, left_out: Mapping[str, str], options: TableOptions) -> None:
    reasons = {
        name: reason for name, reason in left_out.items() if name not in (options.kinds or {})
    }
    if reasons:
        text = ", ".join(f"{name!r} ({reason})" for name, reason in reasons.items())
        identifiers = any(reason.startswith("identifier") for reason in reasons.values())
        remedy = '; to use an identifier, set its kind to "category" in `kinds`'
        warn(f"{where}: left out {text}{remedy if identifiers else ''}")


def _add_note(notes: NDArray[np.object_], text: str, rows: Bools) -> None:
    if rows.any():
        earlier = notes[rows]
        notes[rows] = np.where(earlier == "", text, earlier + ("; " + text))
