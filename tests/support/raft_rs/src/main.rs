//! Members of Raft groups by the crate `raft` (the core of TiKV), told what happens by lines of JSON.
//!
//! A line in is a list of `[member, command, argument...]`; a line out is what is to be done because of it. Nothing
//! happens by itself: no clock runs here, and no chance is used, so a line in always has the same line out.
//! A configuration is in force when it is in the log, as with the core that these members are mixed with.

mod log;
mod member;

use member::Member;
use serde_json::{json, Value};
use std::collections::HashMap;
use std::io::{stdin, stdout, BufRead, Write};

fn main() {
    let mut members: HashMap<u64, Member> = HashMap::new();
    let mut out = stdout().lock();
    for line in stdin().lock().lines() {
        let line = line.expect("a line of text");
        let command: Value = serde_json::from_str(&line).expect("JSON");
        let me = command[0].as_u64().expect("a member");
        let answer = match command[1].as_str().expect("a command") {
            "start" => {
                members.insert(me, Member::start(me, &command[2]));
                members.get_mut(&me).unwrap().done()
            }
            "stop" => {
                members.remove(&me);
                json!({})
            }
            what => {
                let member = members.get_mut(&me).expect("a member that runs");
                member.carry_out(what, &command);
                member.done()
            }
        };
        serde_json::to_writer(&mut out, &answer).expect("somebody reads");
        out.write_all(b"\n").expect("somebody reads");
        out.flush().expect("somebody reads");
    }
}
