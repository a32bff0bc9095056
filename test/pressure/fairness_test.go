// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// TestFairness has one client flood cold names over UDP and TCP, while nine others ask for 100 cold names and 100 hot ones a
// second each, three of them over TCP. Each of the nine has every answer, but for those whose query found the socket's
// buffer full: the kernel throws away whatever comes then. That happens where the agent gets no processor for long, so in
// an ordinary run the flood over UDP is no faster than any machine takes; else it is as fast as it can be.
func TestFairness(t *testing.T) {
	const neighbours, latency = 9, 150 * time.Millisecond // the flood wants 7,500 places, more than there are
	up := startSlowServer(t, latency)
	a := start(t, settings{rest: fmt.Sprintf("forward: [{zone: ., to: [%q]}]\ncache: {size: 16Mi}\n", up)})
	var all []*steadyClient
	for i := range neighbours {
		all = append(all, newSteadyClient(t, a.listen, i))
	}
	for _, n := range all {
		n.start()
	}
	time.Sleep(proctest.OrdinaryOrSoak(time.Second, 10*time.Second))
	flood, busy := time.Now(), a.cpu(t)
	f := startFlooder(t, a.listen, netip.MustParseAddr("127.0.0.2"), proctest.OrdinaryOrSoak(50_000, 0))
	time.Sleep(proctest.OrdinaryOrSoak(3*time.Second, time.Minute))
	f.end()
	over, busy := time.Now(), a.cpu(t)-busy
	for _, n := range all {
		n.end()
	}
	dropped := drops(t, a.listen.Port())
	proctest.Figure(t, "the flood: %s in %s, for which the agent took %s of processor time", f, over.Sub(flood).Round(time.Millisecond), busy)
	proctest.Figure(t, "shed: %.0f with a reply, %.0f without; %d packets found a full buffer", a.shed(t, "client"), a.shed(t, "flood"), dropped)
	for _, kind := range []string{"cold", "hot"} {
		proctest.Figure(t, "%s names before: %s", kind, summarize(all, kind == "hot", time.Time{}, flood))
		proctest.Figure(t, "%s names in the flood: %s", kind, summarize(all, kind == "hot", flood, over))
	}
	for _, n := range all {
		for _, hot := range []bool{false, true} {
			r := summarize([]*steadyClient{n}, hot, time.Time{}, over)
			lost := r.lost > 0 && (n.stream || dropped == 0) || r.lost > dropped || r.lost > r.asked/10
			if r.asked == 0 || r.good != r.asked-r.lost || lost {
				t.Errorf("%s, hot names %t: %s", n.conn.LocalAddr(), hot, r)
			}
		}
	}
	if replied, not := a.shed(t, "client"), a.shed(t, "flood"); replied == 0 || not == 0 {
		t.Errorf("%.0f of the flood's queries were shed with a reply, and %.0f without", replied, not)
	}
	if got := a.shed(t, "inflight") + a.shed(t, "waiting"); got != 0 {
		t.Errorf("%.0f queries found no place at all", got)
	}
}

// startSlowServer runs a server that gives every name an address, but not soon.
func startSlowServer(t *testing.T, latency time.Duration) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(proctest.FreeAddr(t)))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(4 << 20)
	var running sync.WaitGroup
	running.Go(func() {
		q := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(q)
			if err != nil {
				return // closed
			}
			if reply := withAddress(q[:n]); reply != nil {
				time.AfterFunc(latency, func() { _, _ = conn.WriteToUDPAddrPort(reply, from) })
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		running.Wait()
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// withAddress answers a query with one address, nil if there is no reading it.
func withAddress(q []byte) []byte {
	end := headerLen
	for end < len(q) && q[end] != 0 {
		end += 1 + int(q[end])
	}
	if end+5 > len(q) {
		return nil
	}
	r := slices.Clone(q[:end+5])
	r[2], r[3] = 0x80|q[2]&1, 0x80
	copy(r[4:12], []byte{0, 1, 0, 1, 0, 0, 0, 0})
	return append(r, 0xc0, headerLen, 0, typeA, 0, classIN, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
}

// A steadyClient asks at a steady rate, and only once for each answer.
type steadyClient struct {
	conn     net.Conn
	stream   bool
	suffix   string
	room     []byte // of a query
	quit     chan struct{}
	asking   sync.WaitGroup
	reading  sync.WaitGroup
	asked    atomic.Int32 // of fates
	outcomes [1 << 16]outcome
}

// A outcome is what became of the query with that ID: odd ones ask for hot names.
type outcome struct {
	sent time.Time
	took atomic.Int64 // 0: there is no answer
	code atomic.Int32
}

// newSteadyClient connects the i-th one. Every third one has a TCP connection.
func newSteadyClient(t *testing.T, to netip.AddrPort, i int) *steadyClient {
	t.Helper()
	n := &steadyClient{stream: i%3 == 2, suffix: fmt.Sprintf("n%d.test", i), room: make([]byte, 0, 512), quit: make(chan struct{})}
	from, network := net.IPv4(127, 0, 0, byte(3+i)), "udp"
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: from}}
	if n.stream {
		network, d.LocalAddr = "tcp", &net.TCPAddr{IP: from}
	}
	var err error
	if n.conn, err = d.DialContext(t.Context(), network, to.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.end)
	return n
}

// start begins to ask, for a cold name and a hot one in turn.
func (n *steadyClient) start() {
	n.reading.Go(n.read)
	n.asking.Go(func() {
		const pause = 10 * time.Millisecond // a hundred times a second
		for next := time.Now(); ; next = next.Add(pause) {
			select {
			case <-n.quit:
				return
			case <-time.After(time.Until(next)):
			}
			n.ask()
			n.ask()
		}
	})
}

// ask asks for the next name.
func (n *steadyClient) ask() {
	id := int(n.asked.Load())
	if id == len(n.outcomes) {
		return
	}
	msg := query(n.room[:0], n.suffix)
	binary.BigEndian.PutUint16(msg, uint16(id))
	if id%2 == 0 {
		renumber(msg, id)
	} else {
		renumber(msg, id%10)
	}
	if n.stream {
		msg = append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
	}
	n.outcomes[id].sent = time.Now()
	n.asked.Add(1)
	_, _ = n.conn.Write(msg) // one that was not sent is not answered
}

// read books answers until the connection is closed.
func (n *steadyClient) read() {
	in := bufio.NewReader(n.conn)
	for msg := make([]byte, 4096); ; {
		size, err := readMessage(n.conn, in, n.stream, msg)
		if err != nil {
			return
		}
		if size < headerLen || msg[2]&0x80 == 0 {
			continue
		}
		f := &n.outcomes[binary.BigEndian.Uint16(msg)]
		f.code.Store(int32(msg[3] & 15))
		f.took.Store(max(1, int64(time.Since(f.sent))))
	}
}

// readMessage reads a message of a connection: a datagram, or from in what its length stands before.
func readMessage(conn net.Conn, in *bufio.Reader, stream bool, msg []byte) (int, error) {
	if !stream {
		return conn.Read(msg)
	}
	var length [2]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return 0, err
	}
	return io.ReadFull(in, msg[:binary.BigEndian.Uint16(length[:])])
}

// end asks no more and waits for the last answers. It may be called twice.
func (n *steadyClient) end() {
	select {
	case <-n.quit:
		return
	default:
		close(n.quit)
	}
	n.asking.Wait()
	for deadline := time.Now().Add(answerTimeout); time.Now().Before(deadline) && !n.answered(); {
		time.Sleep(10 * time.Millisecond)
	}
	_ = n.conn.Close()
	n.reading.Wait()
}

func (n *steadyClient) answered() bool {
	for i := range n.asked.Load() {
		if n.outcomes[i].took.Load() == 0 {
			return false
		}
	}
	return true
}

// A summary is what became of queries.
type summary struct {
	asked, lost, good int
	took              []time.Duration
}

func (s summary) String() string {
	return fmt.Sprintf("%d asked, %d answered, %d without an answer, %d with a bad one; median %s, p99 %s, longest %s", s.asked,
		s.good, s.lost, s.asked-s.lost-s.good, round(quantile(s.took, 500)), round(quantile(s.took, 990)), round(quantile(s.took, 1000)))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// summarize sums up what neighbours asked from one moment to another, of hot names or of cold ones.
func summarize(all []*steadyClient, hot bool, from, to time.Time) (s summary) {
	for _, n := range all {
		for i := range n.asked.Load() {
			f := &n.outcomes[i]
			if hot != (i%2 == 1) || f.sent.Before(from) || !f.sent.Before(to) {
				continue
			}
			s.asked++
			took := f.took.Load()
			if took == 0 {
				s.lost++
				continue
			}
			s.took = append(s.took, time.Duration(took))
			if f.code.Load() == dns.RcodeSuccess {
				s.good++
			}
		}
	}
	slices.Sort(s.took)
	return s
}

// A flooder asks for new names, over UDP without waiting for answers, and over TCP as fast as they
// come.
type flooder struct {
	udp     []net.Conn
	tcp     net.Conn
	rate    int // queries a second over UDP; 0: as fast as it can
	quit    atomic.Bool
	sending sync.WaitGroup
	running sync.WaitGroup      // with the connections
	sent    [2]atomic.Int64     // over UDP and TCP
	answers [2][16]atomic.Int64 // by rcode
}

// startFlooder begins, until end is called or the test ends.
func startFlooder(t *testing.T, to netip.AddrPort, from netip.Addr, rate int) *flooder {
	t.Helper()
	f := &flooder{rate: rate}
	dial := func(network string, local net.Addr) net.Conn {
		d := net.Dialer{LocalAddr: local}
		conn, err := d.DialContext(t.Context(), network, to.String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 8 { // so that every socket of the agent gets some of it
		conn := dial("udp", &net.UDPAddr{IP: from.AsSlice()})
		f.udp = append(f.udp, conn)
		f.running.Go(func() { f.read(conn, 0) })
	}
	f.tcp = dial("tcp", &net.TCPAddr{IP: from.AsSlice()})
	f.running.Go(func() { f.read(f.tcp, 1) })
	f.running.Go(f.sendTCP)
	f.sending.Go(f.sendUDP)
	t.Cleanup(f.end)
	return f
}

func (f *flooder) sendUDP() {
	msg, n := query(nil, "flood.test"), 0
	for began := time.Now(); !f.quit.Load(); {
		if f.rate > 0 && n > int(time.Since(began)*time.Duration(f.rate)/time.Second) {
			time.Sleep(time.Millisecond)
			continue
		}
		for conn := f.udp[n/64%len(f.udp)]; ; {
			renumber(msg, n)
			if _, err := conn.Write(msg); err == nil {
				f.sent[0].Add(1)
			}
			if n++; n%64 == 0 {
				break
			}
		}
	}
}

func (f *flooder) sendTCP() {
	msg := query(nil, "stream.test")
	frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
	for n := 0; ; n++ {
		renumber(frame[2:], n)
		if _, err := f.tcp.Write(frame); err != nil {
			return // closed
		}
		f.sent[1].Add(1)
	}
}

func (f *flooder) read(conn net.Conn, kind int) {
	in := bufio.NewReader(conn)
	for msg := make([]byte, 4096); ; {
		n, err := readMessage(conn, in, kind == 1, msg)
		if err != nil {
			return // closed
		}
		if n >= headerLen {
			f.answers[kind][msg[3]&15].Add(1)
		}
	}
}

// end ends the flood. It may be called twice.
func (f *flooder) end() {
	f.quit.Store(true)
	f.sending.Wait()
	for _, conn := range f.udp {
		_ = conn.Close()
	}
	_ = f.tcp.Close()
	f.running.Wait()
}

func (f *flooder) String() string {
	var parts []string
	for kind, network := range []string{"UDP", "TCP"} {
		parts = append(parts, fmt.Sprintf("%d queries over %s", f.sent[kind].Load(), network))
		for code := range f.answers[kind] {
			if n := f.answers[kind][code].Load(); n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, dns.RcodeToString[code]))
			}
		}
	}
	return strings.Join(parts, ", ")
}

// shed is how many queries the agent has turned away, for a reason.
func (a *agent) shed(t *testing.T, reason string) float64 {
	t.Helper()
	return a.counted(t, "shed", reason)
}

// counted is the series with that in its name, and the reason.
func (a *agent) counted(t *testing.T, name, reason string) float64 {
	t.Helper()
	body, err := a.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(series, name) && strings.Contains(series, strconv.Quote(reason)) {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric of what is shed because of %s:\n%s", reason, body)
	return 0
}

// drops is how many packets the kernel has dropped because the sockets of a port were full.
func drops(t *testing.T, port uint16) (sum int) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 13 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		n, err := strconv.Atoi(fields[12])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
