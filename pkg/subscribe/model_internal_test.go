// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// The model: random worlds in virtual time. An API server has objects, whose versions only grow. Resolvers watch it, each with its own
// delay, and answer with the version that they know. An agent, which is a Client and a cache, asks a resolver on a session and all of
// them through a pool. Messages take time, PUSHes overtake answers, connections fall silent and break. The agent is replaced, by a
// hand-over or with a snapshot; the API server is restored from a backup. Each answer that a client of the agent gets, from it or from a
// copy in the kernel, has its version in it, and is compared with what the agent has received and with what the resolvers knew.

const (
	modelTTL    = 5 * time.Second
	modelMaxAge = 8 * time.Second
	// maxDelays bounds the ways of a question and its answer, the time in the resolver, and that until a PUSH is written.
	maxDelays = time.Second
)

// An event is what happens at a time.
type event struct {
	at  time.Time
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// A fact is the state of an object: of the version that made it, since a time.
type fact struct {
	version uint32
	exists  bool
	since   time.Time
}

// An origin says where an answer came from.
type origin struct {
	resolver *modelResolver
	conn     *modelConn // nil: the pool
	asked    time.Time  // of the pool
	version  uint32
}

// A copied is a copy of an answer in the kernel. It is withdrawn when the cache reports a change of its name.
type copied struct {
	msg   []byte
	until time.Time
	entry cache.Entry
	from  origin
}

// A world is one run.
type world struct {
	tb       testing.TB
	seed     uint64
	r        *rand.Rand
	now, end time.Time
	seq      int
	events   eventHeap

	objects   []fact
	version   uint32
	rv        uint64    // resourceVersion at the API server: it goes back with a restore
	restored  time.Time // when the API server was restored from a backup
	resolvers []*modelResolver
	hasty     bool // sessions often end between a PUSH and the next View

	cache   *cache.Cache
	client  *Client
	conn    *modelConn // of the session; nil: there is none
	keys    [][]byte
	flights map[string]*flight // by key
	origins map[string]origin  // of what is stored under a key
	kernel  map[string]copied  // by key

	received   []uint32     // newest version of each object that was reported to the agent
	receivedAt []time.Time  // when that was
	receivedOn []*modelConn // on which session
	youngView  time.Time    // arrival of the last View of an age below modelMaxAge, on the session
	refuse     map[string]int
	poolAsked  time.Time // when the answer that the pool delivers was asked for
	odd        bool      // the answer that the agent processes is truncated
	exhausted  bool      // and it was asked for again as often as it may be
	tally      map[string]int
}

// after has do called after d.
func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now.Add(d), w.seq, do})
}

// upTo returns a random time below d.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.r.Int64N(int64(d))) }

func (w *world) chance(percent int) bool { return w.r.IntN(100) < percent }

func (w *world) fail(format string, args ...any) {
	w.tb.Helper()
	w.tb.Fatalf("seed %d, after %s: %s", w.seed, w.now.Sub(w.end.Add(-worldLength)), fmt.Sprintf(format, args...))
}

const worldLength = 90 * time.Second

// modelName returns a name of an object: its own, or one below.
func modelName(object int, below bool) []byte {
	text := fmt.Sprintf("o%d.ns.svc.cluster.local.", object)
	if below {
		text = "a." + text
	}
	name, err := wire.AppendName(nil, text)
	if err != nil {
		panic(err)
	}
	return name
}

var modelDomain = []byte("\x07cluster\x05local\x00")

func modelOwner(name []byte) []byte { return zone.Owner(name, modelDomain) }

// objectOf returns the index of the object of a name.
func objectOf(name []byte) int { return int(modelOwner(name)[2] - '0') }

// newWorld makes a world that begins at start, with the cache c.
func newWorld(tb testing.TB, seed uint64, c *cache.Cache, start time.Time) *world {
	tb.Helper()
	w := &world{
		tb: tb, seed: seed, r: rand.New(rand.NewPCG(seed, 40)), now: start, end: start.Add(worldLength), cache: c,
		flights: map[string]*flight{}, origins: map[string]origin{}, kernel: map[string]copied{}, rv: 1000, refuse: map[string]int{}, tally: map[string]int{},
	}
	c.Flush([]byte{0}, true)
	c.Observe(w.withdraw)
	w.hasty = w.chance(10)
	for i := range 1 + w.r.IntN(5) {
		w.objects = append(w.objects, fact{exists: w.chance(70)})
		for _, below := range []bool{false, true} {
			key := binary.BigEndian.AppendUint16(modelName(i, below), wire.TypeTXT)
			w.keys = append(w.keys, append(key, 0))
		}
		if w.chance(5) {
			w.refuse[string(modelName(i, w.chance(50)))] = wire.RcodeNotAuth + w.r.IntN(2)*(wire.RcodeRefused-wire.RcodeNotAuth)
		}
	}
	w.received, w.receivedAt, w.receivedOn = make([]uint32, len(w.objects)), make([]time.Time, len(w.objects)), make([]*modelConn, len(w.objects))
	for range 1 + w.r.IntN(3) {
		w.addResolver()
	}
	w.newClient()
	// What happens, and how often: mean pauses.
	often := 50*time.Millisecond + w.upTo(2*time.Second)
	w.repeat(often, w.change)
	w.repeat(20*time.Millisecond+w.upTo(2*time.Second), w.lookup)
	w.repeat(10*time.Second+w.upTo(time.Minute), w.breakSomething)
	w.after(w.upTo(time.Second), w.connect)
	return w
}

// repeat calls do again and again, with pauses of mean on average.
func (w *world) repeat(mean time.Duration, do func()) {
	w.after(w.upTo(2*mean), func() {
		do()
		w.repeat(mean, do)
	})
}

func (w *world) run() {
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(event)
		if e.at.After(w.end) {
			return
		}
		w.now = e.at
		e.do()
		if w.conn != nil {
			w.conn.flush()
		}
		if s := w.client.session; s != nil && (len(s.names) != len(s.order) || len(s.byID) != len(s.order)) {
			w.fail("%d names, %d in order, %d by ID", len(s.names), len(s.order), len(s.byID))
		}
	}
}

// newClient makes the agent, as one that has received nothing.
func (w *world) newClient() {
	if w.client != nil {
		w.count(w.client.Stats())
	}
	w.client = New(Config{
		Cache: func() *cache.Cache { return w.cache }, Owner: modelOwner, Pool: (*modelPool)(w), MaxAge: modelMaxAge,
		Now: func() time.Time { return w.now }, Log: slog.New(slog.DiscardHandler),
	})
	client := w.client
	client.arm = func(d time.Duration) {
		w.after(d, func() {
			if w.client == client {
				client.expire()
			}
		})
	}
	if w.chance(50) {
		client.limits = limits{1 + w.r.IntN(3), time.Second + w.upTo(20*time.Second), time.Second + w.upTo(5*time.Second)}
	}
	w.youngView = time.Time{}
	clear(w.received)
	clear(w.receivedAt)
	clear(w.receivedOn)
}

func (w *world) count(st Stats) {
	for what, n := range map[string]uint64{"repeated": st.Repeated, "late": st.Late, "full": st.Full, "refused": st.Refused} {
		w.tally[what] += int(n)
	}
}

// change changes an object.
func (w *world) change() {
	object := w.r.IntN(len(w.objects))
	w.rv++
	w.put(object)
}

// put gives an object another state.
func (w *world) put(object int) {
	w.version++
	w.objects[object] = fact{version: w.version, exists: w.chance(70), since: w.now}
	for _, res := range w.resolvers {
		res.feed(watchEvent{w.rv, object, w.objects[object], w.now})
	}
}

// restore has the API server go on from a backup. That ends all watches, and each resolver lists what there is.
func (w *world) restore() {
	w.rv -= 1 + w.r.Uint64N(50)
	w.restored = w.now
	for _, res := range w.resolvers {
		res.queue, res.paused, res.newest = nil, w.now, 0
	}
	for object := range w.objects {
		w.put(object)
	}
}

// withdraw is the cache's observer: it removes the copies of a name, or of the names of an object.
func (w *world) withdraw(name []byte) {
	for key := range w.kernel {
		if name == nil || bytes.HasSuffix([]byte(key[:len(key)-3]), name) {
			delete(w.kernel, key)
		}
	}
}

// breakSomething has a part fail, for a time.
func (w *world) breakSomething() {
	res := w.resolvers[w.r.IntN(len(w.resolvers))]
	switch w.r.IntN(10) {
	case 0: // the resolver's watch stops, and the agent may come to it
		res.pause(w.upTo(40 * time.Second))
		if conn := w.conn; conn != nil && conn.res != res {
			w.after(w.upTo(30*time.Second), func() { conn.reset("reset") })
		}
	case 1: // all watches stop: the API server is gone
		for _, res := range w.resolvers {
			res.pause(w.upTo(20 * time.Second))
		}
	case 2: // the connection is silent
		if w.conn != nil {
			w.conn.silence(w.upTo(12 * time.Second))
		}
	case 3: // it is silent twice, and in between some of what was sent arrives
		if conn, d := w.conn, 2*time.Second+w.upTo(3*time.Second); conn != nil {
			conn.silence(d)
			w.after(d+w.upTo(22*time.Millisecond), func() { conn.silence(5*time.Second + w.upTo(5*time.Second)) })
		}
	case 4: // reset
		if w.conn != nil {
			w.conn.reset("reset")
		}
	case 5: // the resolver answers no questions on sessions for a time
		res.mute = w.now.Add(w.upTo(5 * time.Second))
	case 6: // the agent hands over to its successor
		if w.conn != nil {
			w.conn.reset("hand-over")
		}
		w.handOver(w.dump(), 0)
	case 7: // it ends without one, and its successor has a snapshot
		dumped, answers := w.now, w.dump()
		w.after(w.upTo(20*time.Second), func() {
			if w.conn != nil {
				w.conn.reset("restart")
			}
			w.handOver(answers, w.now.Sub(dumped))
		})
	case 8:
		if w.restored.IsZero() {
			w.restore()
		}
	case 9:
		next, err := w.cache.Resize(cache.MinSize<<w.r.IntN(3), w.now)
		assert.NoError(w.tb, err)
		w.cache = next
	}
}

// A saved has the answers of an agent.
type saved struct {
	records [][]byte
	origins map[string]origin
}

// dump returns the answers in the cache.
func (w *world) dump() saved {
	var records [][]byte
	_, err := w.cache.Dump(1<<20, w.now, func(record []byte) error {
		records = append(records, bytes.Clone(record))
		return nil
	})
	assert.NoError(w.tb, err)
	return saved{records, maps.Clone(w.origins)}
}

// handOver begins a new agent, with the answers that an old one had some time ago.
func (w *world) handOver(s saved, passed time.Duration) {
	var err error
	w.cache.Observe(nil)
	w.cache, err = cache.New(cache.Config{Size: cache.MinSize}, w.now)
	assert.NoError(w.tb, err)
	w.cache.Observe(w.withdraw)
	w.cache.Vouch(w.now, true) // must not matter
	if _, err = w.cache.Restore(slices.Values(s.records), passed, w.now, modelOwner); err != nil {
		w.fail("restore: %v", err)
	}
	w.flights, w.origins, w.kernel = map[string]*flight{}, s.origins, map[string]copied{}
	w.newClient()
}

// A flight is a question of clients that the agent resolves, like resolve.inFlight.
type flight struct {
	w     *world
	key   []byte
	begun time.Time
	from  *Client
}

// lookup is a client's question.
func (w *world) lookup() {
	key := w.keys[w.r.IntN(len(w.keys))]
	if k, ok := w.kernel[string(key)]; ok && w.now.Before(k.until) {
		w.tally["kernel hits"]++
		w.checkHit(key, k.msg, k.entry, k.from)
		return
	}
	msg, found := w.cache.Lookup(key, w.now, nil)
	if found == cache.Fresh {
		e, _ := w.cache.Peek(key, w.now)
		w.checkHit(key, msg, e, w.origins[string(key)])
		if _, left, ok := w.cache.Validity(key, w.now); ok && w.chance(20) {
			w.kernel[string(key)] = copied{msg, w.now.Add(left), e, w.origins[string(key)]}
		}
		return
	}
	name := key[:len(key)-3]
	if f := w.flights[string(key)]; f != nil && !w.cache.ChangedSince(modelOwner(name), f.begun) {
		return // joined
	}
	f := &flight{w: w, key: key, begun: w.now, from: w.client}
	w.flights[string(key)] = f
	var q wire.Query
	query := append([]byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, key[:len(key)-1]...)
	query = binary.BigEndian.AppendUint16(query, wire.ClassIN)
	if q.Parse(query) != wire.RcodeSuccess {
		w.fail("query %x", query)
	}
	var batch wire.SendBatch
	w.client.Ask(query, w.now.Add(4*time.Second), f, &batch)
	batch.Flush()
}

// Answered implements wire.AnswerReceiver, like resolve.inFlight: it stores the answer and passes it on.
func (f *flight) Answered(m *wire.Message, err error, _ *wire.SendBatch) {
	w := f.w
	if w.client != f.from {
		return
	}
	if w.flights[string(f.key)] == f {
		delete(w.flights, string(f.key))
	}
	if err != nil {
		w.tally["failed"]++
		return
	}
	if m.Truncated() {
		w.fail("a truncated answer")
	}
	from := w.originOf(m)
	w.checkAnswer(f.key, from)
	a := cache.Answer{
		Msg: m.Raw, Lifetime: modelTTL, Owner: modelOwner(f.key[:len(f.key)-3]), QueriedAt: f.begun, Kept: m.Kept,
		AllTypes: m.Rcode() == wire.RcodeNXDomain,
	}
	for _, r := range m.Records {
		a.TTLs = append(a.TTLs, r.TTL)
	}
	before := w.cache.Stats().Insertions
	w.cache.Put(f.key, &a, w.now)
	if w.cache.Stats().Insertions > before {
		w.origins[string(f.key)] = from
	}
	if m.Kept {
		w.tally["kept"]++
	}
}

// originOf reads where an answer is from.
func (w *world) originOf(m *wire.Message) origin {
	data := m.Raw[m.Records[0].Data():]
	if m.Records[0].Type == wire.TypeSOA {
		data = data[2:] // two names
	}
	id := binary.BigEndian.Uint16(data[4:])
	from := origin{version: binary.BigEndian.Uint32(data), resolver: w.resolvers[id&0xf]}
	if m.Server != "" {
		from.conn = w.conn
	} else {
		from.asked = w.poolAsked
	}
	return from
}

// afterRestore reports whether an answer may be behind because the resolvers do not all list at once after a restore. Until then one that
// has not seems ahead of one that has.
func (w *world) afterRestore(from origin, object int) bool {
	const listed = 2*time.Second + maxDelays
	return w.now.Sub(w.restored) < listed && (from.conn == nil || from.conn != w.receivedOn[object])
}

// checkAnswer checks an answer that the agent has just got.
func (w *world) checkAnswer(key []byte, from origin) {
	object := objectOf(key[:len(key)-3])
	switch {
	case from.version >= w.received[object]:
	case from.conn != nil && from.conn != w.receivedOn[object]: // the answer of another resolver, in doubt
		w.tally["behind, other session"]++
	case from.conn != nil:
		w.fail("%s has version %d on the session that reported %d at %s", key, from.version, w.received[object], w.receivedAt[object])
	case from.asked.Before(w.receivedAt[object]) && !w.exhausted:
		w.fail("%s has version %d of the pool, asked at %s, and %d was reported at %s", key, from.version, from.asked, w.received[object], w.receivedAt[object])
	default:
		w.tally["behind, pool"]++
	}
}

// checkHit checks an answer from the cache, or from the kernel: a copy of the entry e.
func (w *world) checkHit(key, msg []byte, e cache.Entry, from origin) {
	var m wire.Message
	if err := m.Parse(msg); err != nil {
		w.fail("%v", err)
	}
	if ttl := m.RecordTTL(m.Records[0]); ttl < 1 || ttl > uint32(modelTTL/time.Second) {
		w.fail("TTL %d", ttl)
	}
	object := objectOf(key[:len(key)-3])
	version := w.originOf(&m).version
	from.resolver = w.originOf(&m).resolver
	w.tally["hits"]++
	if e.Kept {
		w.tally["kept hits"]++
		if e.Age > modelTTL {
			w.tally["kept hits after the TTL"]++
		}
	}
	if version < w.received[object] {
		switch {
		case w.afterRestore(from, object):
			w.tally["behind, restored"]++
			return
		case e.Kept:
			w.fail("%s is kept in version %d, and %d was reported at %s", key, version, w.received[object], w.receivedAt[object])
		case from.conn != nil && from.conn == w.receivedOn[object], from.conn == nil && from.asked.Before(w.receivedAt[object]):
			w.fail("%s is stored in version %d, of %+v, and %d was reported at %s", key, version, from, w.received[object], w.receivedAt[object])
		}
		w.tally["behind, hit"]++
	}
	known := from.resolver.at(object, w.now.Add(-max(keptFor, modelTTL)-maxDelays))
	if version < known.version {
		w.fail("%s is in version %d, and %d was known to its resolver at %s (kept %t, age %s)", key, version, known.version, known.since, e.Kept, e.Age)
	}
	if e.Kept && m.Rcode() == wire.RcodeNXDomain && w.now.Sub(w.youngView) > keptFor && e.Age > modelTTL {
		w.fail("%s is denied, and the view was old since %s", key, w.youngView)
	}
}

// keptFor is how long a View is good for.
const keptFor = 5 * time.Second

// message returns the answer of a resolver that knows a fact.
func (f *fact) message(query []byte, resolver int) []byte {
	msg := bytes.Clone(query)
	msg[2], msg[3] = 0x81, 0x80
	data := binary.BigEndian.AppendUint32(nil, f.version)
	data = binary.BigEndian.AppendUint16(data, uint16(resolver))
	rrtype := wire.TypeTXT
	if f.exists {
		msg[7] = 1
	} else {
		msg[3] |= wire.RcodeNXDomain
		msg[9], rrtype = 1, wire.TypeSOA
		data = append(append([]byte{0, 0}, data...), make([]byte, 22-2-6)...)
	}
	msg = append(msg, 0xc0, wire.HeaderLen)
	msg = binary.BigEndian.AppendUint16(msg, rrtype)
	msg = binary.BigEndian.AppendUint16(msg, wire.ClassIN)
	msg = binary.BigEndian.AppendUint32(msg, uint32(modelTTL/time.Second))
	msg = binary.BigEndian.AppendUint16(msg, uint16(len(data)))
	return append(msg, data...)
}

func TestModel(t *testing.T) {
	t.Parallel()
	worlds := uint64(3000)
	soak := os.Getenv("SOAK") != ""
	if soak {
		worlds = 1_000_000
	}
	const lanes = 4
	for lane := range uint64(lanes) {
		t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
			t.Parallel()
			tally := map[string]int{}
			start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			c, err := cache.New(cache.Config{Size: cache.MinSize}, start)
			assert.NoError(t, err)
			for i := lane; i < worlds; i += lanes {
				w := newWorld(t, i, c, start)
				w.run()
				w.count(w.client.Stats())
				c, start = w.cache, w.end.Add(time.Hour)
				for what, n := range w.tally {
					tally[what] += n
				}
				if done := i/lanes + 1; soak && done%2500 == 0 {
					fmt.Fprintf(os.Stderr, "lane %d: %d worlds\n", lane, done)
				}
			}
			t.Log(tally)
			for _, what := range []string{"kept hits after the TTL", "behind, pool", "pushed, overtaken", "failed over", "behind, waited", "repeated", "late", "unsubscribed", "full", "kernel hits", "truncated", "restart"} {
				if tally[what] == 0 {
					t.Errorf("no world had: %s", what)
				}
			}
		})
	}
}

func modelAddr(resolver int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(resolver + 1)}), 53)
}
