// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// What the load knows of DNS.
const (
	headerLen = 12
	labelLen  = len("100-100-100-100") // of the label that numbers the names
	typeA     = 1
	classIN   = 1
)

// labelFrom to labelFrom+labelBase-1 are the numbers in that label, so that its length is always the same. What it spells
// is an address, as in names of pods.
const labelFrom, labelBase = 100, 150

// answerTimeout is how long an answer is waited for.
const answerTimeout = 5 * time.Second

// loadOptions say what a load asks.
type loadOptions struct {
	addr   netip.AddrPort
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	rate   int // queries a second
	length time.Duration
	suffix string // of the names; each query asks for a new one, unless
	names  int    // it is one of so many, in turn
	first  int    // number of the first name
}

// A load asks over UDP from a few ports, at a steady rate and without asking again, and keeps account of every query.
// What an answer took is what the kernel says: how busy the load itself is does not show in it.
type load struct {
	loadOptions
	began      time.Time
	outcomes   []outcome
	asked      atomic.Int64 // of outcomes, those that were sent
	unexpected atomic.Int64 // answers that belong to no query, or came twice
	quit       chan struct{}
	sending    sync.WaitGroup
	ports      []*loadPort
}

// An outcome is what became of a query.
type outcome struct {
	sent atomic.Int64  // Unix time in ns
	took atomic.Int64  // in ns; 0: not answered
	code atomic.Uint32 // rcode
	who  atomic.Uint32 // address in the first record, 0: there is none
}

// A loadPort is a socket with the queries that were sent from it, by ID.
type loadPort struct {
	conn  *net.UDPConn
	next  uint16
	byID  [1 << 16]atomic.Int64 // number of the query, from 1
	query []byte
	want  []byte // question of the answer that is being read
	done  chan struct{}
}

// startLoad begins to ask and does so for the length, or until the load is ended.
func startLoad(t *testing.T, o loadOptions) *load {
	t.Helper()
	const ports = 4
	l := &load{loadOptions: o, quit: make(chan struct{}), outcomes: make([]outcome, int(float64(o.rate)*(o.length.Seconds()+1)))}
	for range ports {
		conn, err := o.dial(t.Context(), "udp", o.addr.String())
		assert.NoError(t, err)
		p := &loadPort{conn: conn.(*net.UDPConn), done: make(chan struct{})}
		p.prepare(t, o.suffix)
		l.ports = append(l.ports, p)
	}
	l.began = time.Now()
	for _, p := range l.ports {
		go func() { // joined by end
			defer close(p.done)
			l.receive(p)
		}()
	}
	l.sending.Go(l.send)
	t.Cleanup(func() { l.end() })
	return l
}

// prepare has the socket hold what comes while the load does not get to run, with the time at which it came.
func (p *loadPort) prepare(t *testing.T, suffix string) {
	t.Helper()
	raw, err := p.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		})
	}
	assert.NoError(t, err)
	p.query = question(make([]byte, headerLen), suffix)
	copy(p.query[2:], []byte{1, 0, 0, 1}) // recursion desired, one question
	p.want = question(nil, suffix)
}

// question appends a question for a numbered name to b.
func question(b []byte, suffix string) []byte {
	b = append(append(b, byte(labelLen)), "100-100-100-100"...)
	for label := range strings.SplitSeq(strings.Trim(suffix, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, typeA, 0, classIN)
}

// number writes the label of the name with number n over that of a question.
func number(q []byte, n int) {
	for i := labelLen - 3; i >= 0; i -= 4 {
		v := labelFrom + n%labelBase
		n /= labelBase
		q[1+i], q[2+i], q[3+i] = byte('0'+v/100), byte('0'+v/10%10), byte('0'+v%10)
	}
}

// nameOf is the name with number n.
func nameOf(n int, suffix string) string {
	q := question(nil, suffix)
	number(q, n)
	return string(q[1:1+labelLen]) + "." + strings.Trim(suffix, ".") + "."
}

// addressIn is the address that the name with number n spells.
func addressIn(n int) netip.Addr {
	var a [4]byte
	for i := 3; i >= 0; i-- {
		a[i] = byte(labelFrom + n%labelBase)
		n /= labelBase
	}
	return netip.AddrFrom4(a)
}

// nameNumber is the number of the name that query i asks for.
func (l *load) nameNumber(i int) int {
	if l.names > 0 {
		i %= l.names
	}
	return l.first + i
}

// send asks what is due, in small portions. What was due while the load did not get to run is left out but for 5 ms of it:
// many at once would be another load.
func (l *load) send() {
	portion := unix.Timespec{Nsec: int64(250 * time.Microsecond)} // a timer of Go's waits a millisecond at least
	most := max(1, l.rate/200)
	began, sent := time.Now(), 0
	for {
		select {
		case <-l.quit:
			return
		default:
		}
		since := time.Since(began)
		if since > l.length {
			return
		}
		due := int(since*time.Duration(l.rate)/time.Second) - sent
		sent += due
		for range min(due, most) {
			l.ask()
		}
		_ = unix.Nanosleep(&portion, nil) // less, when a signal comes, is no matter
	}
}

func (l *load) ask() {
	i := int(l.asked.Load())
	if i == len(l.outcomes) {
		return
	}
	p := l.ports[i%len(l.ports)]
	p.next++
	p.byID[p.next].Store(int64(i + 1))
	binary.BigEndian.PutUint16(p.query, p.next)
	number(p.query[headerLen:], l.nameNumber(i))
	l.outcomes[i].sent.Store(time.Now().UnixNano())
	l.asked.Store(int64(i + 1))
	_, _ = p.conn.Write(p.query) // one that was not sent is not answered
}

// receive books answers until the port is closed.
func (l *load) receive(p *loadPort) {
	msg, oob := make([]byte, 4096), make([]byte, 128)
	for {
		n, oobn, _, _, err := p.conn.ReadMsgUDPAddrPort(msg, oob)
		switch {
		case err != nil && ended(err):
			return
		case err == nil && n >= headerLen:
			l.recordAnswer(p, msg[:n], proctest.ArrivalTime(oob[:oobn]))
		}
	}
}

// ended reports whether a port is closed or out of time. Other errors are those of earlier queries.
func ended(err error) bool {
	netErr, ok := err.(net.Error) //nolint:errorlint // as the package net documents it
	return !ok || netErr.Timeout() || strings.Contains(err.Error(), "closed")
}

// recordAnswer notes an answer.
func (l *load) recordAnswer(p *loadPort, msg []byte, at int64) {
	i := int(p.byID[binary.BigEndian.Uint16(msg)].Load()) - 1
	if i < 0 {
		l.unexpected.Add(1)
		return
	}
	o := &l.outcomes[i]
	number(p.want, l.nameNumber(i))
	rest, ok := bytes.CutPrefix(msg[headerLen:], p.want)
	if !ok || msg[2]&0x80 == 0 || o.took.Load() != 0 {
		l.unexpected.Add(1)
		return
	}
	o.code.Store(uint32(msg[3] & 15))
	if binary.BigEndian.Uint16(msg[6:]) > 0 && len(rest) >= 16 && rest[0] >= 0xc0 && rest[3] == typeA {
		o.who.Store(binary.BigEndian.Uint32(rest[12:]))
	}
	o.took.Store(max(1, at-o.sent.Load()))
}

// end asks no more, waits for the last answers and closes the ports. It may be called twice.
func (l *load) end() {
	select {
	case <-l.quit:
		return
	default:
		close(l.quit)
	}
	l.finish()
}

// finish waits until all is asked, and for the last answers.
func (l *load) finish() {
	l.sending.Wait()
	for deadline := time.Now().Add(answerTimeout); time.Now().Before(deadline) && !l.allAnswered(); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, p := range l.ports {
		_ = p.conn.Close()
		<-p.done
	}
}

// allAnswered reports whether nothing is missing of the last seconds.
func (l *load) allAnswered() bool {
	asked := int(l.asked.Load())
	for i := asked - 1; i >= max(0, asked-int(answerTimeout.Seconds())*l.rate); i-- {
		if l.outcomes[i].took.Load() == 0 {
			return false
		}
	}
	return true
}
