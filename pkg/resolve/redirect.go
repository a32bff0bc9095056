// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A RewriteKind is the part of a name that a rule replaces.
type RewriteKind uint8

// Kinds of rules.
const (
	RewriteExact  RewriteKind = iota // the whole name
	RewritePrefix                    // the beginning, not necessarily whole labels
	RewriteSuffix                    // the end, not necessarily whole labels
)

// A Rewrite replaces the name in a query. From and To are text in lower case without the trailing dot:
// letters, digits, '-', '_', and dots between labels.
type Rewrite struct {
	Kind     RewriteKind
	From, To string

	name []byte // with RewriteExact: To in wire form
}

// Rewrites is a list of rules. The first rule that matches and yields a valid name is applied, once.
//
//	                                  asked               looked up
//	exact   a.example   b.example     a.example           b.example
//	prefix  p-          q-            p-web.example       q-web.example
//	suffix  .old.test   .new.test     web.old.test        web.new.test
//
// In the answer, the client's name replaces the name that was looked up, also at the end of longer names.
// With a suffix rule, From replaces To at the end of all names. Rules do not match names with a dot within
// a label.
type Rewrites struct {
	rules    []Rewrite
	exact    map[string]int // index of the first exact rule, by canonical name
	patterns []int          // indexes of the other rules, in order
}

// NewRewrites prepares rules. It returns an error for a rule with an empty From, and for an exact rule whose From
// or To is not a domain name.
func NewRewrites(rules []Rewrite) (*Rewrites, error) {
	rs := &Rewrites{exact: map[string]int{}}
	for i, rule := range rules {
		switch {
		case rule.From == "":
			return nil, fmt.Errorf("rewrite rule %d: from is empty", i)
		case rule.Kind != RewriteExact:
			rs.patterns = append(rs.patterns, i)
		default:
			from, ok := appendName(nil, []byte(rule.From))
			to, good := appendName(nil, []byte(rule.To))
			if !ok || !good {
				return nil, fmt.Errorf("rewrite rule %d: %q or %q is not a domain name", i, rule.From, rule.To)
			}
			rule.name = to
			if _, again := rs.exact[string(from)]; !again {
				rs.exact[string(from)] = i
			}
		}
		rs.rules = append(rs.rules, rule)
	}
	return rs, nil
}

// match appends to dst the name to look up in place of name, and returns the rule that applies, nil
// for none.
func (rs *Rewrites) match(dst, name []byte) ([]byte, *Rewrite) {
	first, found := rs.exact[string(name)]
	if !found {
		first = len(rs.rules)
	}
	if len(rs.patterns) > 0 {
		var room [wire.MaxName]byte
		text, ok := appendPlainText(room[:0], name)
		for _, i := range rs.patterns {
			if !ok || i > first {
				break
			}
			if to, made := rs.rules[i].apply(dst, text); made {
				return to, &rs.rules[i]
			}
		}
	}
	if !found {
		return dst, nil
	}
	return append(dst, rs.rules[first].name...), &rs.rules[first]
}

// target appends the name that the rule yields for name, which it matches.
func (r *Rewrite) target(dst, name []byte) []byte {
	if r.Kind == RewriteExact {
		return append(dst, r.name...)
	}
	var room [wire.MaxName]byte
	text, _ := appendPlainText(room[:0], name)
	to, _ := r.apply(dst, text)
	return to
}

// apply appends the name that a prefix or suffix rule yields for text. It returns false if the rule
// does not apply.
func (r *Rewrite) apply(dst, text []byte) ([]byte, bool) {
	if r.Kind == RewriteSuffix {
		return replaceSuffix(dst, text, r.From, r.To)
	}
	kept, ok := bytes.CutPrefix(text, []byte(r.From))
	return joinName(dst, ok, []byte(r.To), kept)
}

// replaceSuffix appends the name for text with suffix to in place of from. It returns false if text
// has no such suffix or the result is not a name.
func replaceSuffix(dst, text []byte, from, to string) ([]byte, bool) {
	kept, ok := bytes.CutSuffix(text, []byte(from))
	return joinName(dst, ok, kept, []byte(to))
}

// joinName appends the name that head and tail form. It returns false if ok is false or they form no name.
func joinName(dst []byte, ok bool, head, tail []byte) ([]byte, bool) {
	if !ok || len(head)+len(tail) > wire.MaxName {
		return dst, false
	}
	var room [wire.MaxName]byte
	return appendName(dst, append(append(room[:0], head...), tail...))
}

// appendPlainText appends the labels of a canonical name with dots between them, without escapes. It
// returns false if a label contains a dot.
func appendPlainText(dst, name []byte) ([]byte, bool) {
	for off := 0; name[off] != 0; {
		next := off + 1 + int(name[off])
		label := name[off+1 : next]
		if bytes.IndexByte(label, '.') >= 0 {
			return dst, false
		}
		if off > 0 {
			dst = append(dst, '.')
		}
		dst = append(dst, label...)
		off = next
	}
	return dst, true
}

// appendName appends the wire form of a name in the format of appendPlainText. It returns false for
// invalid names and for the root.
func appendName(dst, text []byte) ([]byte, bool) {
	start := len(dst)
	for rest := text; ; {
		label, after, more := bytes.Cut(rest, []byte{'.'})
		if len(label) == 0 || len(label) > wire.MaxLabel {
			return dst[:start], false
		}
		dst = append(append(dst, byte(len(label))), label...)
		if len(dst)-start >= wire.MaxName {
			return dst[:start], false
		}
		if !more {
			return append(dst, 0), true
		}
		rest = after
	}
}

// A redirect holds how the client's question became the question that is looked up in its place. The
// steps, in order:
//
//	rule      a rewrite rule replaced the name
//	aliasMsg  an alias of the zone, of a template or of DNS64 leads to an external name
//	retryA    there is no IPv6 address, and A records are queried
//
// restorer.restore reverses it for the answer.
type redirect struct {
	exists bool // hosts has the name, but not the type, which other sources answer: their NXDOMAIN becomes NODATA

	rule     *Rewrite // rewrite rule that was applied; nil: none
	aliasMsg []byte   // a message that ends with the CNAME record whose target is looked up; empty: none
	target   int      // offset of the CNAME's target in aliasMsg; it is uncompressed

	dns64       *DNS64    // nil: no DNS64 for this query
	retryA      bool      // the current question is for A records
	firstAnswer []byte    // with retryA: the answer to the AAAA query; empty: none
	client      wire.Peer // set only with dns64 or path
	addrProven  bool      // client's address is verified, see clientKey
	synthesized bool      // the answer has synthesized addresses
	maxTTL      uint32    // with retryA: maximum TTL of synthesized addresses, in seconds
	useFirst    bool      // with retryA: the answer to the AAAA query is returned after all
	subnet      []byte    // with dns64: the client's subnet option, if any route forwards it

	path   *pods.SearchPath // search path of the client's pod; nil: no walk
	prefix int              // with path: bytes of the name asked before its suffix
	suffix int              // with path: index of the suffix under which the name was found
}

// mayWalk reports whether a walk follows: there is a search path, and answer is NXDOMAIN of at most maxFirstAnswer bytes.
func (d *redirect) mayWalk(answer []byte) bool {
	return d.path != nil && len(answer) <= maxFirstAnswer && len(answer) > 0 && answer[3]&0x0f == wire.RcodeNXDomain
}

// hasAlias reports whether an alias led to the current name.
func (d *redirect) hasAlias() bool { return d != nil && len(d.aliasMsg) > 0 }

// maxFirstAnswer bounds the bytes of the AAAA answer that are kept while the client waits for A
// records: the maximum of a UDP reply, and far more than a denial has. The answer is used only if the
// A query has no result, truncated with TC if it was longer. Without this bound each query could hold
// a whole message.
const maxFirstAnswer = 4096

// clone returns a copy with its own bytes, for a client that waits.
func (d *redirect) clone() *redirect {
	d.firstAnswer = wire.Truncate(d.firstAnswer, maxFirstAnswer)
	c := *d
	c.aliasMsg, c.firstAnswer, c.subnet = slices.Clone(d.aliasMsg), slices.Clone(d.firstAnswer), slices.Clone(d.subnet)
	return &c
}

// lookupName appends the canonical name that is looked up in place of the canonical name asked.
func (d *redirect) lookupName(dst, asked []byte) []byte {
	switch {
	case d.hasAlias():
		return append(dst, d.aliasMsg[d.target:]...)
	case d.rule != nil:
		return d.rule.target(dst, asked)
	}
	return append(dst, asked...)
}

// A restoreState is the result of turning an answer into one to the client's question.
type restoreState uint8

const (
	restored   restoreState = iota // the answer is one to the client's question
	needsRetry                     // A records must be queried first
	failed                         // there is no answer, or none that fits a message
)

// A restorer turns answers back into answers to the client's question. It is reused.
type restorer struct {
	tail     wire.Message // parsed answer
	denial   wire.Message // parsed AAAA answer
	held     []byte       // copy of the answer, see hold; or the result of restoreDNS64
	recaster wire.Rewriter
	order    []uint16 // reused
	name     [wire.MaxName]byte

	// Set by restoreNames for renameBack.
	renames           func(dst, name []byte) ([]byte, bool) // renameBack as a func, kept because a method value allocates
	rule              *Rewrite
	lookupName, asked []byte // canonical
}

// restorerPool holds restorers for answers from upstream. A Worker has its own.
var restorerPool = sync.Pool{New: func() any { return new(restorer) }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// restore turns dst[start:], the answer to the current question, into the answer to the client's
// question. failure says that there is no answer. It first truncates the answer to limit, because each
// record costs time here.
func (w *restorer) restore(d *redirect, ask *wire.Question, limit int, failure bool, dst []byte, start int) ([]byte, restoreState) {
	dst = dst[:start+len(wire.Truncate(dst[start:], limit))]
	if d.dns64 != nil {
		switch next := w.restoreDNS64(d, failure, dst[start:]); next {
		case needsRetry:
			return dst[:start], needsRetry
		case failed: // dst holds no usable answer, for example only A records that cannot be mapped
			failure = true
		case restored:
			dst = append(dst[:start], w.held...)
			failure = false
		}
	}
	if failure {
		return dst[:start], failed
	}
	switch {
	case d.hasAlias():
		var ok bool
		if dst, ok = w.prependAlias(d, dst, start); !ok {
			return dst[:start], failed
		}
	case d.exists:
		wire.DenyType(dst[start:])
	}
	if d.rule != nil {
		return w.restoreNames(d.rule, ask, dst, start)
	}
	return dst, restored
}

// prependAlias inserts the alias message before dst[start:]. It returns false if dst[start:] is malformed,
// or if a compression pointer can no longer reach its label.
func (w *restorer) prependAlias(d *redirect, dst []byte, start int) ([]byte, bool) {
	if !w.hold(dst[start:]) {
		return dst, false
	}
	return w.tail.AppendToChain(append(dst[:start], d.aliasMsg...), start, d.target)
}

// hold copies msg to w.held and parses it into w.tail. It returns false if msg is malformed.
func (w *restorer) hold(msg []byte) bool {
	w.held = append(w.held[:0], msg...)
	return w.tail.Parse(w.held) == nil
}

// restoreNames turns dst[start:] into the answer for the client's name.
func (w *restorer) restoreNames(rule *Rewrite, ask *wire.Question, dst []byte, start int) ([]byte, restoreState) {
	if !w.hold(dst[start:]) {
		return dst[:start], failed
	}
	end := wire.HeaderLen
	for w.held[end] != 0 {
		end += 1 + int(w.held[end])
	}
	w.rule, w.lookupName, w.asked = rule, w.held[wire.HeaderLen:end+1], canonical(&w.name, ask)
	if w.renames == nil {
		w.renames = w.renameBack
	}
	return w.recaster.Rename(dst[:start], &w.tail, w.asked, w.renames), restored
}

// renameBack appends the client's form of a name in an answer, see Rewrites. It returns false if the name stays.
func (w *restorer) renameBack(dst, name []byte) ([]byte, bool) {
	if w.rule.Kind == RewriteSuffix && w.rule.To != "" {
		var room [wire.MaxName]byte
		text, ok := appendPlainText(room[:0], name)
		if !ok {
			return dst, false
		}
		return replaceSuffix(dst, text, w.rule.To, w.rule.From)
	}
	kept := len(name) - len(w.lookupName)
	if kept < 0 || kept+len(w.asked) > wire.MaxName || string(name[kept:]) != string(w.lookupName) || !isLabelAt(name, kept) {
		return dst, false
	}
	return append(append(dst, name[:kept]...), w.asked...), true
}

// restoreDNS64 handles the answer to the AAAA or the A query. It returns needsRetry if A records must be
// queried first, restored with the answer for the client in w.held, or failed.
func (w *restorer) restoreDNS64(d *redirect, failure bool, msg []byte) restoreState {
	if !failure && w.tail.Parse(msg) != nil {
		return failed
	}
	if !d.retryA {
		if !failure && !d.dns64.needsSynthesis(&w.tail) {
			return w.withoutMapped()
		}
		d.retryA, d.firstAnswer, d.maxTTL = true, d.firstAnswer[:0], defaultTTL
		if !failure {
			d.firstAnswer, d.maxTTL = append(d.firstAnswer, msg...), maxSynthesizedTTL(&w.tail)
		}
		return needsRetry
	}
	if failure {
		return failed
	}
	d.synthesized = hasAddress(&w.tail, wire.TypeA)
	if !d.synthesized {
		useless := hasType(&w.tail, wire.TypeA) // A records without a usable address
		if d.useFirst = w.isBetter(d.firstAnswer, useless); d.useFirst {
			return w.withoutMapped()
		}
		if useless {
			return failed
		}
	}
	w.held = w.recaster.SynthesizeAAAA(w.held[:0], &w.tail, d.dns64.embedder, d.maxTTL)
	return restored
}

// isBetter reports whether to return the AAAA answer, now that the A answer has no usable address. If so
// it parses the AAAA answer into w.tail. A denial of A records is better than an AAAA answer with
// IPv4-mapped addresses only. useless: there are A records, without a usable address.
func (w *restorer) isBetter(answer []byte, useless bool) bool {
	m := &w.denial
	if m.Parse(answer) != nil || !useless && hasType(m, wire.TypeAAAA) && !hasAddress(m, wire.TypeAAAA) {
		return false
	}
	return w.tail.Parse(answer) == nil
}

// withoutMapped sets w.held to the answer in w.tail, without IPv4-mapped addresses (RFC 6147 section
// 5.1.4). It may modify w.tail.
func (w *restorer) withoutMapped() restoreState {
	m := &w.tail
	if slices.ContainsFunc(m.Records, func(r wire.Record) bool { return isMapped(m, r) }) {
		w.order = w.order[:0]
		for i, r := range m.Records {
			if isMapped(m, r) || r.Section == wire.Answer && r.Type == wire.TypeRRSIG && m.TypeCovered(r) == wire.TypeAAAA {
				continue
			}
			w.order = append(w.order, uint16(i))
		}
		if w.recaster.Keep(m, w.order) != nil {
			return failed
		}
		m.ClearAuthentic()
	}
	w.held = append(w.held[:0], m.Raw...)
	return restored
}
