# A subject: does what is to be measured, and prints its own figures as one JSON object, last.
import json
import sys

count = int(sys.argv[1])
numbers = [n + 1_000_000 for n in range(count)]
print(json.dumps({
    "count": count,
    "list_bytes": sys.getsizeof(numbers) + sum(map(sys.getsizeof, numbers)),
}))
