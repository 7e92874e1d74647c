"""As one table of raw bytes, each sent whole and byte by byte: the first line that comes
back, and how often the origin was dialled. Details of each are in the tests of the parts."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sandboxd.proxy.limits import ProxyLimits
from support.proxies import Wire, finish, running_proxies, scripted_origin

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
BAD, NO, OK = b"HTTP/1.1 400 ", b"HTTP/1.1 403 ", b"HTTP/1.1 200 "
GET = b"GET http://ok.test:PORT/ HTTP/1.1\r\nHost: ok.test\r\n"
POST = b"POST http://ok.test:PORT/ HTTP/1.1\r\nHost: ok.test\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET http://no.test:PORT/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n\r\n"
END = b"\r\n\r\n"

HTTP: dict[str, tuple[bytes, bytes, int]] = {
    "absolute form": (GET + b"Connection: close" + END, OK, 1),
    "without Host": (b"GET http://ok.test:PORT/ HTTP/1.1\r\nConnection: close" + END, OK, 1),
    "ws": (b"GET ws://ok.test:PORT/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close" + END, OK, 1),
    "https absolute form": (b"GET https://ok.test:PORT/ HTTP/1.1\r\nHost: ok.test" + END, BAD, 0),
    "origin form": (b"GET / HTTP/1.1\r\nHost: ok.test:PORT" + END, BAD, 0),
    "lower case CONNECT": (b"connect ok.test:PORT HTTP/1.1" + END, BAD, 0),
    **{
        f"port {port!r}": (b"CONNECT ok.test:" + port + b" HTTP/1.1" + END, BAD, 0)
        for port in (b"", b"0", b"-1", b"+443", b"0443", b"0x1bb", b"4_43", b"99999", b"9" * 5000, b"443:443", b"\xb2")
    },
    "CONNECT with a length": (b"CONNECT ok.test:PORT HTTP/1.1\r\nContent-Length: 5" + END + b"hello", BAD, 0),
    "CONNECT with chunks": (b"CONNECT ok.test:PORT HTTP/1.1\r\nTransfer-Encoding: chunked" + END, BAD, 0),
    "two Hosts": (GET + b"Host: no.test" + END, BAD, 0),
    "Host is allowed, authority is not": (SMUGGLED, NO, 0),
    "Host is not allowed, authority is": (GET.replace(b"t: ok", b"t: no") + b"Connection: close" + END, OK, 1),
    "userinfo": (b"GET http://ok.test@no.test:PORT/ HTTP/1.1" + END, BAD, 0),
    "TE and CL": (CHUNKED + b"Content-Length: 5" + END + b"0" + END + SMUGGLED, BAD, 0),
    "TE in HTTP/1.0": (CHUNKED.replace(b"1.1", b"1.0") + END + b"0" + END, BAD, 0),
    "TE unknown": (POST + b"Transfer-Encoding: xchunked" + END, b"HTTP/1.1 501 ", 0),
    "TE twice": (CHUNKED + b"Transfer-Encoding: chunked" + END, b"HTTP/1.1 501 ", 0),
    **{
        f"length {length[:9]!r}": (POST + b"Content-Length: " + length + END + b"hello", BAD, 0)
        for length in (b"+5", b"-5", b"5, 5", b"0x5", b"5_0", b"", b"9" * 30, b"9" * 5000, b"\xb2")
    },
    "folded": (GET + b"A: b\r\n c" + END, BAD, 0),
    "head of 60 KB": (GET + b"Connection: close\r\nA: " + b"b" * 60_000 + END, OK, 1),
    "head of 64 KiB": (GET + b"A: " + b"b" * 65_536 + END, b"HTTP/1.1 431 ", 0),
    "pipelined to another host": (GET + b"\r\n" + SMUGGLED, OK, 1),
    "pipelined after a body": (POST + b"Content-Length: 5" + END + b"hello" + SMUGGLED, OK, 1),
    "upgrade": (SMUGGLED[:-2] + b"Upgrade: websocket" + END, NO, 0),
    "HTTP/0.9": (b"GET http://ok.test:PORT/\r\n", b"HTTP/1.1 505 ", 0),
    "HTTP/2": (b"PRI * HTTP/2.0" + END + b"SM" + END, b"HTTP/1.1 505 ", 0),
    "Expect": (POST + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: 0" + END, OK, 1),
    "TRACE": (GET.replace(b"GET", b"TRACE") + END, b"HTTP/1.1 405 ", 0),
    "NUL": (b"GET http://ok.test\0.no.test:PORT/ HTTP/1.1" + END, BAD, 0),
    "bare CR": (b"GET http://ok.test:PORT/\rx HTTP/1.1" + END, BAD, 0),
    "bare LF": (b"GET http://ok.test:PORT/\nHost: x HTTP/1.1" + END, BAD, 0),
    "TLS": (b"\x16\x03\x01\0\xa5\x01\0", BAD, 0),
}

NAME = b"\x05\x01\x00\x03\x07ok.test"
SOCKS: dict[str, tuple[bytes, bytes, int]] = {
    "by name": (b"\5\1\0" + NAME + b"PORT", b"\5\0\5\0", 1),
    "a login nobody asked for": (b"\5\2\0\2" + NAME + b"PORT", b"\5\0\5\0", 1),
    "its address, which no rule names": (b"\5\1\0\5\1\0\1\x7f\0\0\1PORT", b"\5\0\5\2", 0),
    "its address as text": (b"\5\1\0\5\1\0\3\x09127.0.0.1PORT", b"\5\0\5\2", 0),
    "its address as a number": (b"\5\1\0\5\1\0\3\x0a2130706433PORT", b"\5\0\5\2", 0),
    "its address, embedded": (b"\5\1\0\5\1\0\4" + b"\0" * 10 + b"\xff\xff\x7f\0\0\1PORT", b"\5\0\5\2", 0),
    "NAT64": (b"\5\1\0\5\1\0\4\0\x64\xff\x9b" + b"\0" * 8 + b"\x7f\0\0\1PORT", b"\5\0\5\2", 0),
    "another name": (b"\5\1\0" + NAME.replace(b"ok", b"no") + b"PORT", b"\5\0\5\2", 0),
    "BIND": (b"\5\1\0" + NAME.replace(b"\x05\x01", b"\5\2", 1) + b"PORT", b"\5\0\5\7", 0),
    "UDP ASSOCIATE": (b"\5\1\0" + NAME.replace(b"\x05\x01", b"\5\3", 1) + b"PORT", b"\5\0\5\7", 0),
    "command 0": (b"\5\1\0" + NAME.replace(b"\x05\x01", b"\5\0", 1) + b"PORT", b"\5\0\5\7", 0),
    "address type 2": (b"\5\1\0\5\1\0\2\x7f\0\0\1PORT", b"\5\0\5\x08", 0),
    "no name": (b"\5\1\0\5\1\0\3\0PORT", b"\5\0\5\x08", 0),
    "a name of 255": (b"\5\1\0\5\1\0\3\xff" + b"x" * 255 + b"PORT", b"\5\0\5\x08", 0),
    "NUL in the name": (b"\5\1\0\5\1\0\3\x0fno.test\0ok.testPORT", b"\5\0\5\x08", 0),
    "no method that is known": (b"\5\1\x01" + NAME + b"PORT", b"\5\xff", 0),
    "no method at all": (b"\5\0", b"\5\xff", 0),
    "SOCKS4": (b"\4\1PORT\x7f\0\0\1\0", b"\0\x5b", 0),
    "SOCKS4a": (b"\4\1PORT\0\0\0\1\0ok.test\0", b"\0\x5b", 0),
    "version 6": (b"\6\1\0", b"", 0),
    "TLS": (b"\x16\3\1", b"", 0),
}


async def outcome(wire: Wire, data: bytes, *, pieces: bool) -> bytes:
    """What comes back, also where the proxy hangs up before the last byte is sent."""
    reader, writer = wire
    answer = bytearray()

    async def listen() -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                answer.extend(piece)

    listening = asyncio.create_task(listen(), name="listen")
    try:
        for place in range(0, len(data), 1 if pieces else len(data)):
            writer.write(data[place : place + (1 if pieces else len(data))])
            await asyncio.sleep(0)
        writer.write_eof()
    except OSError:  # it was refused before the last byte
        pass
    await listening
    await finish(writer)
    return bytes(answer)


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "bytes"])
@pytest.mark.parametrize("table", [HTTP, SOCKS], ids=["HTTP", "SOCKS"])
async def test_raw_bytes(table: dict[str, tuple[bytes, bytes, int]], pieces: bool) -> None:
    """None of them reaches the origin by another reading, and all get an answer of their protocol."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.read(1)
        if head.isalpha():
            await reader.readuntil(END)
            writer.write(ANSWER)

    found: dict[str, tuple[bytes, int]] = {}
    async with (
        scripted_origin(talk) as origin,
        running_proxies("ok.test", "*", denied=["no.test"], limits=ProxyLimits(linger_s=0.05)) as proxies,
    ):
        for name, (data, start, _) in table.items():
            before = origin.connections
            http = table is HTTP
            port = b"%d" % origin.port if http else origin.port.to_bytes(2, "big")
            wire = await (proxies.http() if http else proxies.socks())
            answer = await outcome(wire, data.replace(b"PORT", port), pieces=pieces and len(data) < 2000)
            found[name] = answer[: len(start)], origin.connections - before
            assert start or not answer, name
            assert name != "pipelined to another host" or answer.count(NO) == 1
    assert found == {name: (start, dialled) for name, (_, start, dialled) in table.items()}
