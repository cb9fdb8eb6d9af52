"""Gives one list two names, prints how many bytes it holds, and reads a byte."""
import json
import sys

pages = [bytes([number]) * 1000000 for number in range(100)]
again = pages
print(json.dumps({'bytes': sum(map(sys.getsizeof, pages)) + sys.getsizeof(pages)}), flush=True)
sys.stdin.buffer.read(1)
