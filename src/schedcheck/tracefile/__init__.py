"""Reading and writing traces.

The format
----------
JSON Lines in UTF-8, keys sorted, no timestamps. The first line is the header: format, target and
version, dialect, capabilities, config, options (where the target was made with any), seed,
schedcheck, expect, witness, start. Each further line is one action: ``do`` names it, the other
keys are its fields, and a field that has its default is left out, so these defaults are part of
the format and never change. The config is written in full but for limits of special features,
which are left out likewise.
Line ``n + 1`` of a file is action ``n``: there are no empty lines. A newline ends the file; a file
without it, and lines that end in CRLF, are read as well.

The version of the format is ``MAJOR.MINOR``. A minor version adds optional keys, which a reader may
skip without reading another trace than was written; whatever changes the meaning of a trace needs
a new major version. So in our minor version and in older ones an unknown field is an error; in a
newer one it is skipped and reported to ``on_ignored``, but an unknown action or word is an error
even there. Another major version is refused.

Format 1.1 adds recordings: ``recorded`` beside an action lists what happened (``recorded.py`` says
how), ``recording`` in the header what is known of tokens, and a file that goes on from another one
has ``start: checkpoint`` and a ``checkpoint``. A cold recording is replayed as the trace it holds.
What needs none of this is written as 1.0.

A trace comes from a stranger. Reading one runs nothing of it, allocates no more than the limits
below allow, and answers any fault with one line that names file, line and field. Names and texts
that pass are printable, so that they cannot steer a terminal; markup of a report is not escaped.
"""

from __future__ import annotations

from schedcheck.tracefile.form import SUFFIX, TraceError, TraceUnwritable
from schedcheck.tracefile.reading import decode, read
from schedcheck.tracefile.recorded import Tokens
from schedcheck.tracefile.recording import EventEncoder, encode_recording_header, encode_step
from schedcheck.tracefile.streaming import Beginning, RecordedStep, RecordingReader
from schedcheck.tracefile.writing import encode, encode_action, encode_header, write, write_bytes

__all__ = [
    "SUFFIX",
    "Beginning",
    "EventEncoder",
    "RecordedStep",
    "RecordingReader",
    "Tokens",
    "TraceError",
    "TraceUnwritable",
    "decode",
    "encode",
    "encode_action",
    "encode_header",
    "encode_recording_header",
    "encode_step",
    "read",
    "write",
    "write_bytes",
]
