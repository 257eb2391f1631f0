// Whether what clients saw of each name of the metadata has an explanation, as porcupine finds it.
//
// Reads operations as JSON lines (tests/support/porcupine_check.py writes them), and prints a line for each
// name in order: its verdict, and of a history without explanation the operations that the longest
// explanation of a part leaves out.
//
// Changes have one order for the whole cluster. Each node answers from its own copy, which is a beginning
// of that order. So the state of the model is the last of the values in that order, and for each node how much
// of them it has shown; a read takes any value from there on. A change that was answered is two operations of
// the model: itself, and in the moment of the answer that its node has it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is one call of a client. Times are nanoseconds of one clock; without an answer there is no end.
type operation struct {
	Name   string
	Kind   string // PUT, REMOVE, READ
	Node   string
	Value  *string // that was put or seen; "*" if only that something is there
	Began  int64
	Ended  *int64
	Answer string // DONE, REFUSED, NONE
}

// step is what the model is told: an operation, or that the node of an answered change has it.
type step struct {
	kind, answer string
	node         int
	value        int
	number       int // of the operation
	has          bool
}

const (
	nothing  = 0
	anything = -1
	never    = math.MaxInt64
	done     = math.MaxInt // what a node has that is asked no more
)

// owed is the answer to a change: its node shows this value, or a later one, from then on.
type owed struct{ number, index int }

// state is the last values of a name, those that a node may still show.
type state struct {
	values []int
	copies []int // by node: the oldest of the values that it may show
	left   []int // by node: steps to come for which its copy counts
	owed   []owed
}

func (s state) clone() state {
	return state{slices.Clone(s.values), slices.Clone(s.copies), slices.Clone(s.left), slices.Clone(s.owed)}
}

// after takes a step from the count of its node, and drops values that no node can show any more.
func (s state) after(told step) state {
	if told.answer != "NONE" {
		s.left[told.node]--
	}
	for node, left := range s.left {
		if left == 0 {
			s.copies[node] = done
		}
	}
	oldest := min(slices.Min(s.copies), len(s.values)-1)
	s.values = s.values[oldest:]
	for node, index := range s.copies {
		if index != done {
			s.copies[node] = index - oldest
		}
	}
	for at := range s.owed {
		s.owed[at].index = max(0, s.owed[at].index-oldest)
	}
	return s
}

// shows is the state behind a step that saw a value: the oldest that explains it binds later ones least.
func (s state) shows(told step, fits func(value int) bool) []interface{} {
	for index := s.copies[told.node]; index < len(s.values); index++ {
		if fits(s.values[index]) {
			next := s.clone()
			next.copies[told.node] = index
			if told.kind == "REMOVE" {
				next.owed = append(next.owed, owed{told.number, index})
			}
			return []interface{}{next.after(told)}
		}
	}
	return nil
}

// changes is the state behind a change, if it can be one here.
func (s state) changes(told step) []interface{} {
	last := s.values[len(s.values)-1]
	if (last == nothing) != (told.kind == "PUT") {
		return nil
	}
	next := s.clone()
	next.values = append(next.values, told.value)
	if told.answer == "DONE" {
		next.owed = append(next.owed, owed{told.number, len(next.values) - 1})
	}
	return []interface{}{next.after(told)}
}

func (s state) take(told step) []interface{} {
	switch {
	case told.has:
		at := slices.IndexFunc(s.owed, func(each owed) bool { return each.number == told.number })
		if at < 0 {
			return nil
		}
		next := s.clone()
		next.copies[told.node] = max(next.copies[told.node], s.owed[at].index)
		next.owed = slices.Delete(next.owed, at, at+1)
		return []interface{}{next.after(told)}
	case told.kind == "READ":
		return s.shows(told, func(value int) bool {
			return value == told.value || told.value == anything && value != nothing
		})
	case told.answer == "REFUSED":
		return s.shows(told, func(value int) bool { return value != nothing && value != told.value })
	case told.answer == "NONE":
		return append(s.changes(told), s.clone().after(told))
	case told.kind == "REMOVE":
		return append(s.changes(told), s.shows(told, func(value int) bool { return value == nothing })...)
	default:
		return s.changes(told)
	}
}

func (s state) same(other state) bool {
	return slices.Equal(s.values, other.values) && slices.Equal(s.copies, other.copies) &&
		slices.Equal(s.left, other.left) && sameOwed(s.owed, other.owed)
}

// sameOwed compares without order.
func sameOwed(one, other []owed) bool {
	if len(one) != len(other) {
		return false
	}
	for _, each := range one {
		if !slices.Contains(other, each) {
			return false
		}
	}
	return true
}

func (s state) hash() uint64 {
	hash := fnv.New64a()
	fmt.Fprint(hash, s.values, s.copies)
	return hash.Sum64()
}

// model is of one name, whose steps at each node are counted.
func model(left []int) porcupine.Model {
	copies := make([]int, len(left))
	first := state{values: []int{nothing}, copies: copies, left: left}
	described := porcupine.NondeterministicModel{
		Init:  func() []interface{} { return []interface{}{first} },
		Step:  func(before, input, _ interface{}) []interface{} { return before.(state).take(input.(step)) },
		Equal: func(one, other interface{}) bool { return one.(state).same(other.(state)) },
		Hash:  func(each interface{}) uint64 { return each.(state).hash() },
	}
	return described.ToModel()
}

// steps are the operations as the model is told of them, and how many there are at each node.
func steps(operations []operation) (history []porcupine.Operation, left []int) {
	nodes, values := map[string]int{}, map[string]int{"*": anything}
	for number, each := range operations {
		node, known := nodes[each.Node]
		if !known {
			node = len(left)
			nodes[each.Node] = node
			left = append(left, 0)
		}
		told := step{kind: each.Kind, answer: each.Answer, node: node, value: nothing, number: number}
		if each.Value != nil {
			if values[*each.Value] == 0 {
				values[*each.Value] = len(values)
			}
			told.value = values[*each.Value]
		}
		ended := int64(never)
		if each.Ended != nil {
			ended = *each.Ended
		}
		if each.Answer != "NONE" {
			left[node]++
		}
		history = append(history, porcupine.Operation{Input: told, Call: each.Began, Return: ended})
		if each.Kind != "READ" && each.Answer == "DONE" {
			told.has = true
			left[node]++
			history = append(history, porcupine.Operation{Input: told, Call: ended, Return: ended})
		}
	}
	return history, left
}

// unexplained are the numbers of the operations that the longest explanation of a part leaves out.
func unexplained(history []porcupine.Operation, left []int, timeout time.Duration) []int {
	_, info := porcupine.CheckOperationsVerbose(model(left), history, timeout)
	var longest []int
	for _, each := range info.PartialLinearizations()[0] {
		if len(each) > len(longest) {
			longest = each
		}
	}
	out := []int{}
	for at, each := range history {
		if !slices.Contains(longest, at) {
			out = append(out, each.Input.(step).number)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, "give the seconds that a name may take:", err)
		os.Exit(2)
	}
	timeout := time.Duration(seconds * float64(time.Second))
	var names []string
	histories := map[string][]operation{}
	lines := json.NewDecoder(bufio.NewReader(os.Stdin))
	for lines.More() {
		var each operation
		if err := lines.Decode(&each); err != nil {
			fmt.Fprintln(os.Stderr, "not an operation:", err)
			os.Exit(2)
		}
		if _, known := histories[each.Name]; !known {
			names = append(names, each.Name)
		}
		histories[each.Name] = append(histories[each.Name], each)
	}
	verdicts := json.NewEncoder(os.Stdout)
	for _, name := range names {
		history, left := steps(histories[name])
		verdict := porcupine.CheckOperationsTimeout(model(left), history, timeout)
		out := []int{}
		if verdict == porcupine.Illegal {
			out = unexplained(history, left, timeout)
		}
		line := map[string]interface{}{"name": name, "verdict": verdict, "unexplained": out}
		if err := verdicts.Encode(line); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
