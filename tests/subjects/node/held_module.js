// A module of CommonJS that keeps a cache and also exports it.
'use strict';

const shared = new Map();
for (let i = 0; i < 12_000; i++) shared.set(i, { shared: i });

module.exports = { shared, sizes: () => shared.size };
