// A service that keeps 50,000 sessions and 32 uploads, and has dropped 400,000 answers.
//
//     node examples/sessions.js &
//     strandline holders $(pidof node)
'use strict';

class Session {
  constructor(id) {
    this.id = id;
    this.visits = [{ at: id }];
  }
}

const sessions = new Map();
const uploads = [];
const answers = new Map();
for (let id = 0; id < 400_000; id++) answers.set(id, { id, tags: [id, `tag ${id}`] });
for (let id = 0; id < 50_000; id++) sessions.set(`user ${id}`, new Session(id));
for (let id = 0; id < 32; id++) uploads.push(Buffer.alloc(1 << 20, id));
answers.clear();

function report() {
  console.log(`ready: ${sessions.size} sessions, ${uploads.length} uploads, ${answers.size} answers`);
}

report();
setInterval(report, 600_000);
