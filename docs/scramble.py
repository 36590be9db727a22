#!/usr/bin/env python3
"""Numbers of scrambled Leaf ids, for programs that are not written in Rust.

Reads ids, one a line, and writes the number of each:

    python3 docs/scramble.py --keys leaf.keys --tag orders --shape scramble:63 < ids

Needs the package `cryptography`. The format is described in docs/sequences.md; this program shares no code
with Leaf.
"""

import argparse
import sys

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

# How many numbers there are; the versions of keys are the multiples above them.
SIZES = {"63": 1 << 60, "53": 1 << 51, "d10": 10**9}
ROUNDS = 10


class Permutation:
    """The permutation of one tag with one key."""

    def __init__(self, master, tag, domain, version):
        purpose = f"{tag}\n{domain}\n{version}".encode()
        derived = HKDF(hashes.SHA256(), 24, b"leaf scramble 1", purpose).derive(master)
        self.check = derived[16:].hex()
        self.cipher = Cipher(algorithms.AES(derived[:16]), modes.ECB()).encryptor()
        self.size = SIZES[domain]
        bits = (self.size - 1).bit_length()
        self.lower = bits // 2
        self.upper = bits - self.lower

    def rounds(self, values, order):
        """Applies the rounds in this order to all values: forwards they permute, backwards they undo it."""
        low = (1 << self.lower) - 1
        for number in order:
            even = number % 2 == 0
            asked = b"".join(
                bytes([number]) + bytes(7) + (value & low if even else value >> self.lower).to_bytes(8, "big")
                for value in values
            )
            answer = self.cipher.update(asked)
            bits, shift = (self.upper, self.lower) if even else (self.lower, 0)
            mask = (1 << bits) - 1
            values = [
                value ^ (int.from_bytes(answer[at : at + 8], "big") & mask) << shift
                for value, at in zip(values, range(0, len(answer), 16))
            ]
        return values

    def walk(self, values, order):
        """What falls outside the domain is done again until it falls inside."""
        values = self.rounds(values, order)
        outside = [at for at, value in enumerate(values) if value >= self.size]
        while outside:
            again = self.rounds([values[at] for at in outside], order)
            for at, value in zip(outside, again):
                values[at] = value
            outside = [at for at in outside if values[at] >= self.size]
        return values

    def numbers(self, permuted):
        return self.walk(permuted, range(ROUNDS - 1, -1, -1))

    def permute(self, numbers):
        return self.walk(numbers, range(ROUNDS))


def read_keys(path):
    """The lines `version = 64 hexadecimal digits` of segment.keys_file."""
    keys = {}
    for line in open(path):
        line = line.split("#")[0].strip()
        if line:
            version, key = line.split("=")
            keys[int(version)] = bytes.fromhex(key.strip())
    return keys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", required=True, help="the file of segment.keys_file")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--shape", required=True, choices=[f"scramble:{name}" for name in SIZES])
    options = parser.parse_args()
    domain = options.shape.split(":")[1]
    keys = read_keys(options.keys)
    ids = [int(line) for line in sys.stdin]
    numbers = [None] * len(ids)
    for version in {number // SIZES[domain] for number in ids}:
        if version not in keys:
            sys.exit(f"there is an id of key {version}, which {options.keys} does not have")
        own = [at for at, number in enumerate(ids) if number // SIZES[domain] == version]
        permutation = Permutation(keys[version], options.tag, domain, version)
        found = permutation.numbers([ids[at] % SIZES[domain] for at in own])
        for at, number in zip(own, found):
            numbers[at] = number
    sys.stdout.writelines(f"{number}\n" for number in numbers)


if __name__ == "__main__":
    main()
