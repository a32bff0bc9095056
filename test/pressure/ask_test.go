// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

const (
	headerLen = 12
	typeA     = 1
	classIN   = 1
	digits    = 8 // of the label that numbers the names
)

// answerTimeout is how long an answer is waited for at the end.
const answerTimeout = 5 * time.Second

// clientsOptions say who asks what.
type clientsOptions struct {
	to       netip.AddrPort
	from     []netip.Addr // client addresses, in turn; all of 127.0.0.0/8 are this machine's
	rate     int          // queries a second
	name     func(i int) int
	suffix   string           // of the names
	ports    int              // sockets; 0: one
	hosts    []*nodetest.Host // that have one socket each, in place of ports
	stream   bool             // over TCP, by one session of each host, or of from's first address
	careless bool             // the last answers are not waited for
}

// clients ask over UDP at a steady rate and without asking again. What an answer took is what the kernel says: how busy
// the load itself is does not show in it.
type clients struct {
	clientsOptions
	began      time.Time
	asked      atomic.Int64
	unexpected atomic.Int64 // answers that belong to no query, or came too late for it
	ports      []*port
	quit       chan struct{}
	running    sync.WaitGroup // of the sender
	reading    sync.WaitGroup // of the receivers
}

// A port is a socket with the queries that were sent from it.
type port struct {
	conn    net.Conn
	next    uint16
	pending [1 << 16]atomic.Int64 // by ID: when it was sent, in Unix time in ns; 0: answered, or never sent

	mu      sync.Mutex // guards answers
	answers []answer
	rcodes  [16]int
	keep    bool // answers
}

// An answer is one that has come.
type answer struct {
	sent time.Duration // since the beginning
	took time.Duration
}

// startClients begins to ask, until end is called or the test ends. With keep, the time of each answer is remembered.
func startClients(t *testing.T, o clientsOptions, keep bool) *clients {
	t.Helper()
	c := &clients{clientsOptions: o, quit: make(chan struct{}), began: time.Now()}
	for i := range max(1, o.ports, len(o.hosts)) {
		conn, err := c.open(i)
		assert.NoError(t, err)
		p := &port{conn: conn, keep: keep}
		p.prepare(t)
		c.ports = append(c.ports, p)
		c.reading.Go(func() { c.receive(p) })
	}
	c.running.Go(c.send)
	t.Cleanup(c.end)
	return c
}

// open opens the i-th socket.
func (c *clients) open(i int) (net.Conn, error) {
	switch {
	case c.stream && c.hosts == nil:
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: c.from[0].AsSlice()}}
		return d.Dial("tcp", c.to.String())
	case c.stream:
		return c.hosts[i].Dial(context.Background(), "tcp", c.to.String())
	case c.hosts != nil:
		var conn net.Conn
		err := c.hosts[i].Do(func() (err error) {
			conn, err = net.ListenUDP("udp4", nil)
			return err
		})
		return conn, err
	}
	return net.ListenUDP("udp4", nil)
}

// prepare has the socket hold what comes while the load does not get to run, with the time at which it came.
func (p *port) prepare(t *testing.T) {
	t.Helper()
	raw, err := p.conn.(syscall.Conn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		})
	}
	assert.NoError(t, err)
}

// query returns a query for a numbered name.
func query(suffix string) []byte {
	b := []byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, digits}
	b = append(b, "00000000"...)
	for label := range strings.SplitSeq(strings.Trim(suffix, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, typeA, 0, classIN)
}

// renumber writes the number of a name over that of a query.
func renumber(q []byte, n int) {
	for i := headerLen + digits; i > headerLen; i-- {
		q[i] = byte('0' + n%10)
		n /= 10
	}
}

// nameOf is the name with number n.
func nameOf(n int, suffix string) string {
	return fmt.Sprintf("%0*d.%s.", digits, n, strings.Trim(suffix, "."))
}

// send asks what is due, in small portions. What was due while the load did not get to run is left out but for 1 ms of it:
// many at once would be another load.
func (c *clients) send() {
	portion := unix.NsecToTimespec(max(int64(250*time.Microsecond), int64(time.Second)/int64(2*c.rate))) // a timer of Go's waits a millisecond at least
	most := max(1, c.rate/1000)
	q, sources := query(c.suffix), make([][]byte, 0, len(c.from))
	for _, a := range c.from {
		sources = append(sources, from(a))
	}
	for sent := 0; ; {
		select {
		case <-c.quit:
			return
		default:
		}
		due := int(time.Since(c.began)*time.Duration(c.rate)/time.Second) - sent
		sent += due
		for range min(due, most) {
			c.ask(q, sources)
		}
		_ = unix.Nanosleep(&portion, nil) // less, when a signal comes, is no matter
	}
}

// from is the control message that has the kernel send from an address.
func from(a netip.Addr) []byte {
	b := make([]byte, unix.CmsgSpace(unix.SizeofInet4Pktinfo))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
	h.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
	info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&b[unix.CmsgLen(0)]))
	info.Spec_dst = a.As4()
	return b
}

func (c *clients) ask(q []byte, sources [][]byte) {
	i := int(c.asked.Add(1)) - 1
	p := c.ports[i%len(c.ports)]
	p.next++
	binary.BigEndian.PutUint16(q, p.next)
	renumber(q, c.name(i))
	p.pending[p.next].Store(time.Now().UnixNano())
	var source []byte
	if len(sources) > 0 {
		source = sources[i%len(sources)]
	}
	if c.stream {
		_, _ = p.conn.Write(framed(q))
		return
	}
	_, _, _ = p.conn.(*net.UDPConn).WriteMsgUDPAddrPort(q, source, c.to) // one that was not sent is not answered
}

// receive books answers until the port is closed.
func (c *clients) receive(p *port) {
	raw, err := p.conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	msg, oob, have := make([]byte, 64<<10), make([]byte, 128), 0
	for {
		var n, oobn int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, failed = unix.Recvmsg(int(fd), msg[have:], oob, 0)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil || failed != nil || c.stream && n == 0 {
			return // closed
		}
		at := proctest.ArrivalTime(oob[:oobn])
		if !c.stream {
			c.recordAnswer(p, msg[:n], at)
			continue
		}
		have += n
		rest := msg[:have]
		for len(rest) > 1 && len(rest) >= 2+int(binary.BigEndian.Uint16(rest)) {
			size := 2 + int(binary.BigEndian.Uint16(rest))
			c.recordAnswer(p, rest[2:size], at)
			rest = rest[size:]
		}
		have = copy(msg, rest)
	}
}

// recordAnswer books an answer that came at a time, in Unix time in ns.
func (c *clients) recordAnswer(p *port, msg []byte, at int64) {
	if len(msg) < headerLen || msg[2]&0x80 == 0 {
		c.unexpected.Add(1)
		return
	}
	sent := p.pending[binary.BigEndian.Uint16(msg)].Swap(0)
	if sent == 0 {
		c.unexpected.Add(1)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rcodes[msg[3]&15]++
	if p.keep {
		p.answers = append(p.answers, answer{time.Duration(sent - c.began.UnixNano()), time.Duration(max(1, at-sent))})
	}
}

// end asks no more, waits for the last answers and closes the ports. It may be called twice.
func (c *clients) end() {
	select {
	case <-c.quit:
		return
	default:
		close(c.quit)
	}
	if !c.careless { // else a session that the agent does not read keeps the sender
		c.running.Wait()
		for deadline := time.Now().Add(answerTimeout); time.Now().Before(deadline) && c.answered() < int(c.asked.Load()); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, p := range c.ports {
		_ = p.conn.Close()
	}
	c.running.Wait()
	c.reading.Wait()
}

func (c *clients) answered() (sum int) {
	for _, n := range c.rcodes() {
		sum += n
	}
	return sum
}

// rcodes counts the answers.
func (c *clients) rcodes() map[int]int {
	sum := map[int]int{}
	for _, p := range c.ports {
		p.mu.Lock()
		for code, n := range p.rcodes {
			if n > 0 {
				sum[code] += n
			}
		}
		p.mu.Unlock()
	}
	return sum
}

// String sums up what became of the queries.
func (c *clients) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d asked, %d without an answer", c.asked.Load(), int(c.asked.Load())-c.answered())
	rcodes := c.rcodes()
	for _, code := range slices.Sorted(maps.Keys(rcodes)) {
		fmt.Fprintf(&b, ", %d %s", rcodes[code], dns.RcodeToString[code])
	}
	return b.String()
}

// took is how long the answers took to what was asked from one moment to another, in order of length.
func (c *clients) took(from, to time.Time) (list []time.Duration) {
	for _, p := range c.ports {
		p.mu.Lock()
		for _, a := range p.answers {
			if at := c.began.Add(a.sent); !at.Before(from) && at.Before(to) {
				list = append(list, a.took)
			}
		}
		p.mu.Unlock()
	}
	slices.Sort(list)
	return list
}

// quantile is the time that the given part of the answers, in thousandths, took at most.
func quantile(took []time.Duration, thousandths int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	return took[min(len(took)-1, len(took)*thousandths/1000)]
}
