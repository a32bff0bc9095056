// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A QueryLog logs the queries that it selects.
type QueryLog struct {
	Log    *slog.Logger
	All    bool          // every query
	Errors bool          // replies other than NOERROR and NXDOMAIN
	Slow   time.Duration // replies that took this long or longer; 0: none
	Sample int           // every n-th query; 0: none
	Filter *Filter       // restricts the selection above; nil: no restriction

	TypeName func(uint16) string // returns the name of a query type; required

	count atomic.Uint64 // queries counted for Sample
}

// A Filter selects queries that match all its fields. Zero fields, except Admit, select all.
type Filter struct {
	Namespace string      // namespace of the client's pod
	Pod       string      // name of the client's pod
	Domain    []byte      // selects names at or below this one, in canonical wire form
	Rcode     string      // one of Rcodes
	Source    string      // one of Sources
	Admit     func() bool // rate limit; called only for queries that match all other fields; required
}

// A sender is the client of a query, and its pod when the query arrived.
type sender struct {
	wire.Peer

	pod   *pods.Pod // nil: unknown
	stale bool      // the pod was not confirmed recently
}

// sender returns the client of the current query.
func (q *query) sender() sender {
	if q.retried != nil {
		return *q.retried
	}
	s := sender{Peer: *q.from}
	if q.plan.Pods != nil {
		s.pod, s.stale = q.plan.Pods.Of(s.Addr.Addr(), q.now)
	}
	return s
}

// A report is a query of a client and its reply, for the query logs and dnstap.
type report struct {
	ask    *wire.Question
	from   sender
	source Source
	rcode  int
	ede    int       // Extended DNS Error, or wire.EDENone; a client without EDNS does not get it
	at     time.Time // time of the reply
	took   time.Duration
	reply  []byte
	detail detail  // not complete while memory is set
	memory *lookup // gave the answer; nil: detail is complete
}

// complete makes the detail complete.
func (q *report) complete() {
	if q.memory != nil {
		q.detail, q.memory = q.memory.detail(q.source), nil
	}
}

// passOn passes the query on to the log, the watchers and the dnstap collector of a plan.
func (q *report) passOn(p *Plan) {
	if p.QueryLog != nil && p.QueryLog.selects(q) {
		p.QueryLog.record(q)
	}
	if p.Watchers != nil {
		for _, l := range p.Watchers.all() {
			if l.selects(q) {
				l.record(q)
			}
		}
	}
	if p.Tap != nil {
		var room [256]byte
		p.Tap.ClientResponse(&q.from.Peer, q.appendExtra(room[:0]), q.at.Add(-q.took), q.at, q.reply)
	}
}

// appendExtra appends the pod and the detail as text: name=value, separated by spaces.
func (q *report) appendExtra(dst []byte) []byte {
	q.complete()
	if pod := q.from.pod; pod != nil {
		dst = append(append(append(append(dst, "pod="...), pod.Namespace...), '/'), pod.Name...)
	}
	for _, m := range q.detail.members() {
		if m[1] == "" {
			continue
		}
		if len(dst) > 0 {
			dst = append(dst, ' ')
		}
		dst = append(append(append(dst, m[0]...), '='), m[1]...)
	}
	return dst
}

// countReply counts a query for its client and its name. waited is zero for an answer from memory.
func countReply(p *Plan, u *pods.Usage, ask *wire.Question, source Source, rcode, size int, waited time.Duration) {
	outcome := pods.FromMemory
	switch {
	case source == SourceShed:
		outcome = pods.Shed
	case rcode == wire.RcodeServFail:
		outcome = pods.Failed
	case source == SourceUpstream:
		outcome = pods.FromUpstream
	}
	var room [wire.MaxName]byte
	name := canonical(&room, ask)
	inside := rcode == wire.RcodeNXDomain && isIn(name, p.Cluster)       // Count ignores it for other rcodes
	c := pods.Counts{pods.Waited: uint64(max(0, waited.Microseconds()))} //nolint:gosec // not negative
	c.Count(1, outcome, rcode, inside, size)
	u.Add(&c)
	if p.Pods != nil { // nil: a reload has turned pod statistics off since the query arrived
		p.Pods.CountName(name, &c)
	}
}

// Watchers are query logs that come and go. The zero value has none. Its methods are safe for concurrent use.
type Watchers struct {
	Changed func() // called after the list has changed; nil: no call

	mu   sync.Mutex
	list atomic.Pointer[[]*QueryLog] // nil: none
}

// maxWatchers bounds the watchers, because each costs time for every query.
const maxWatchers = 8

// Add adds a query log, and reports whether there was room. remove removes it.
func (w *Watchers) Add(l *QueryLog) (remove func(), ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.all()
	if len(list) >= maxWatchers {
		return nil, false
	}
	list = append(slices.Clone(list), l)
	w.list.Store(&list)
	w.changed()
	return func() { w.remove(l) }, true
}

func (w *Watchers) remove(l *QueryLog) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(w.all()), func(o *QueryLog) bool { return o == l })
	if w.list.Store(&list); len(list) == 0 {
		w.list.Store(nil)
	}
	w.changed()
}

func (w *Watchers) changed() {
	if w.Changed != nil {
		w.Changed()
	}
}

// Any reports whether there is a query log.
func (w *Watchers) Any() bool { return w.list.Load() != nil }

func (w *Watchers) all() []*QueryLog {
	if list := w.list.Load(); list != nil {
		return *list
	}
	return nil
}

// selects reports whether l logs the query q.
func (l *QueryLog) selects(q *report) bool {
	return (l.All ||
		l.Errors && q.rcode != wire.RcodeSuccess && q.rcode != wire.RcodeNXDomain ||
		l.Slow > 0 && q.took >= l.Slow ||
		l.Sample > 0 && l.count.Add(1)%uint64(l.Sample) == 0) &&
		(l.Filter == nil || l.Filter.selects(q))
}

func (f *Filter) selects(q *report) bool {
	if f.Namespace != "" && (q.from.pod == nil || q.from.pod.Namespace != f.Namespace) ||
		f.Pod != "" && (q.from.pod == nil || q.from.pod.Name != f.Pod) ||
		f.Rcode != "" && f.Rcode != Rcodes()[rcodeGroup(q.rcode)] ||
		f.Source != "" && f.Source != Sources()[q.source] {
		return false
	}
	var room [wire.MaxName]byte
	return (f.Domain == nil || isIn(canonical(&room, q.ask), f.Domain)) && f.Admit()
}

// isIn reports whether a name is a domain or below it, both in canonical wire form. No name is in an empty domain: there is none.
func isIn(name, domain []byte) bool {
	return len(domain) > 0 && bytes.HasSuffix(name, domain) && isLabelAt(name, len(name)-len(domain))
}

// record logs a query.
func (l *QueryLog) record(q *report) {
	question := q.ask.QuestionSection()
	var name []byte
	rrtype := q.ask.Type
	if len(question) > 4 {
		name = wire.AppendText(nil, question[:len(question)-4])
		rrtype = q.ask.OriginalType() // the type looked up may differ
	}
	attrs := append([]slog.Attr{
		slog.String("name", string(name)), slog.String("type", l.TypeName(rrtype)), slog.Bool("tcp", q.from.Stream),
		slog.String("rcode", Rcodes()[rcodeGroup(q.rcode)]), slog.String("source", Sources()[q.source]), slog.Duration("took", q.took),
	}, q.from.attrs()...)
	q.complete()
	for _, m := range q.detail.members() {
		if m[1] != "" {
			attrs = append(attrs, slog.String(m[0], m[1]))
		}
	}
	if q.ede != wire.EDENone {
		attrs = append(attrs, slog.Int("ede", q.ede), slog.String("ede_text", wire.EDEText(q.ede)))
	}
	l.Log.LogAttrs(context.Background(), slog.LevelInfo, "query", attrs...)
}

// attrs returns the sender for a log record.
func (s *sender) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.Any("client", s.Addr.Addr())}
	if s.pod != nil {
		attrs = append(attrs, slog.String("pod", s.pod.String()), slog.String("workload", s.pod.Workload))
	}
	if s.stale {
		attrs = append(attrs, slog.Bool("pod_stale", true))
	}
	return attrs
}
