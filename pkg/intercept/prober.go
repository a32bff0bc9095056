// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

const (
	probeTimeout = time.Second           // limit of one probe, with all its attempts
	udpInterval  = 60 * time.Millisecond // time between two UDP attempts; each has a new source port, which may lead to another SO_REUSEPORT socket
	tcpInterval  = 80 * time.Millisecond // time between two TCP attempts; well below the second after which the kernel repeats a lost SYN
	maxAttempts  = 12                    // attempts per transport and probe
	udpParallel  = 4                     // attempts at the start; their different source ports may reach several SO_REUSEPORT sockets
)

// A Prober queries an agent through its own listening sockets.
type Prober struct {
	Port  uint16 // port of the agent's DNS sockets
	Token string // text in the agent's answer, see [SelfName]

	// Dial connects to the agent. Nil: [DialMarked], which needs CAP_NET_ADMIN.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
}

// Probe returns nil if the agent answered at addr over UDP and over TCP, within a
// second and before ctx ended. Otherwise it returns the error of the last attempt that got a
// reply or an error, and its cause: Silent, Refused, Wrong, Unsent or ProbeFailed.
//
// It queries over UDP and TCP at once, and repeats the query while there is no answer: queries may
// be lost under load, and another attempt may reach another socket. Over UDP it begins with several
// attempts from different ports, and waits for all their answers until the next attempt is due. An
// answer that is not an agent's fails the probe at once, whatever other attempts got: another process
// shares the address. Attempts stay open until the probe is decided. A TCP session that is accepted
// and closed without an answer fails. The agent's server admits this session even when it is full.
func (p *Prober) Probe(ctx context.Context, addr netip.Addr) (Cause, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	to := netip.AddrPortFrom(addr, p.Port)
	var causeTCP Cause
	var byTCP error
	var group sync.WaitGroup
	group.Go(func() { causeTCP, byTCP = p.attempts(ctx, "tcp", to, 1, tcpInterval) })
	causeUDP, byUDP := p.attempts(ctx, "udp", to, udpParallel, udpInterval)
	group.Wait()
	if byUDP == nil || errors.Is(byTCP, errForeignAnswer) && !errors.Is(byUDP, errForeignAnswer) {
		return causeTCP, byTCP
	}
	return causeUDP, byUDP
}

// attempts queries over one transport until the answers are right, one is foreign, all attempts failed, or ctx ends.
func (p *Prober) attempts(ctx context.Context, network string, to netip.AddrPort, atOnce int, every time.Duration) (Cause, error) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan error, maxAttempts)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	r := transport{left: maxAttempts, cause: Silent, err: context.DeadlineExceeded, attempt: func() {
		group.Go(func() { results <- p.attempt(ctx, network, to) })
	}}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for range atOnce {
		r.start()
	}
	for ctx.Err() == nil {
		select {
		case err := <-results:
			r.record(err)
			switch {
			case errors.Is(err, errForeignAnswer), r.open == 0 && !r.answered && r.left == 0:
				cancel()
			case r.answered && (r.open == 0 || atOnce == 1):
				return 0, nil
			}
		case <-ticker.C:
			if r.answered {
				return 0, nil
			}
			r.start()
		case <-ctx.Done():
		}
	}
	return r.cause, fmt.Errorf("%s: %s: %w", network, r.cause, r.err)
}

// A transport is the state of the attempts over one transport.
type transport struct {
	attempt  func() // starts one attempt
	left     int    // attempts that may still start
	open     int    // attempts that run
	answered bool   // an attempt got the right answer
	cause    Cause  // cause of the last attempt that failed but was not Silent; Silent if there was none
	err      error  // error of that attempt
}

func (r *transport) start() {
	if r.left > 0 {
		r.left--
		r.open++
		r.attempt()
	}
}

// record stores the result of an attempt.
func (r *transport) record(err error) {
	r.open--
	if err == nil {
		r.answered = true
		return
	}
	cause := causeOf(err)
	if cause != Silent {
		r.cause, r.err = cause, err
	}
	if cause == Wrong {
		r.start() // a predecessor may still read from the sockets: the next attempt may reach this agent
	}
}

// attempt sends one query over a new connection and checks the answer.
func (p *Prober) attempt(ctx context.Context, network string, to netip.AddrPort) error {
	dial := p.Dial
	if dial == nil {
		dial = DialMarked
	}
	conn, err := dial(ctx, network, to)
	if err != nil {
		return err
	}
	// Closing the connection ends all calls that wait on it.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	err = sendQuery(conn, network, p.Token)
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // err says only that the connection is closed; the end of ctx closed it
	}
	return err
}

// DialMarked connects to addr from that same address, over a socket with the agent's
// mark, whose packets no rule redirects.
func DialMarked(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: setMark(rules.Mark)}
	from := netip.AddrPortFrom(addr.Addr(), 0)
	switch network {
	case "udp":
		return d.DialUDP(ctx, network, from, addr)
	case "tcp":
		return d.DialTCP(ctx, network, from, addr)
	}
	return nil, fmt.Errorf("network %q: %w", network, net.UnknownNetworkError(network))
}

// errNoMark means that the kernel refused a mark.
var errNoMark = errors.New("setting SO_MARK (needs the capability NET_ADMIN)")

// setMark returns a [net.Dialer.Control] that gives the socket a mark.
func setMark(mark uint32) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var refused error
		err := raw.Control(func(fd uintptr) {
			refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
		})
		if err = errors.Join(err, refused); err != nil {
			return fmt.Errorf("%w: %w", errNoMark, err)
		}
		return nil
	}
}

// causeOf returns the cause of a failed attempt.
func causeOf(err error) Cause {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, errWrongAnswer):
		return Wrong
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), ok && timeout.Timeout():
		return Silent
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return Unsent
	}
	return ProbeFailed
}

// SelfName is the name that a probe queries, in class CH and of type TXT. The agent
// answers with one string, its token, and a TTL of 0.
const SelfName = "self.node-cache."

var (
	// errWrongAnswer means that the answer is not the agent's answer to this query.
	errWrongAnswer = errors.New("not this agent's answer")
	// errForeignAnswer is an errWrongAnswer that comes from no agent. During a hand-over
	// two agents read the same sockets for a short time, each with its own token.
	errForeignAnswer = fmt.Errorf("another process answers here: %w", errWrongAnswer)
)

// maxAnswer is the maximum size of an answer in bytes. The right answer is shorter.
const maxAnswer = 512

// sendQuery sends the self-query over conn and waits for the answer. Over UDP it ignores
// messages that do not belong to the query.
func sendQuery(conn net.Conn, network, token string) error {
	q := new(dns.Msg)
	q.SetQuestion(SelfName, dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	q.RecursionDesired = false
	packed, err := q.Pack()
	if err != nil {
		return fmt.Errorf("packing the query: %w", err)
	}
	messages := io.ReadWriter(conn)
	if network == "tcp" {
		messages = &dns.Conn{Conn: conn} // adds and reads the length of each message
	}
	if _, err := messages.Write(packed); err != nil {
		return fmt.Errorf("sending the query: %w", err)
	}
	buf := make([]byte, maxAnswer)
	for {
		n, err := messages.Read(buf)
		if errors.Is(err, io.ErrShortBuffer) {
			return fmt.Errorf("more than %d bytes: %w", maxAnswer, errForeignAnswer)
		}
		if err != nil {
			return fmt.Errorf("waiting for the answer: %w", err)
		}
		a := new(dns.Msg)
		err = a.Unpack(buf[:n])
		switch {
		case network == "udp" && (err != nil || a.Id != q.Id || !a.Response):
			continue
		case err != nil:
			return fmt.Errorf("reading the answer: %w", errors.Join(err, errForeignAnswer))
		}
		return checkAnswer(q, a, token)
	}
}

// checkAnswer returns an error unless a is the answer to q by the agent with this token.
func checkAnswer(q, a *dns.Msg, token string) error {
	switch {
	case a.Id != q.Id || !a.Response || len(a.Question) != 1 ||
		a.Question[0].Qtype != q.Question[0].Qtype || a.Question[0].Qclass != q.Question[0].Qclass ||
		!strings.EqualFold(a.Question[0].Name, q.Question[0].Name):
		return fmt.Errorf("another question: %w", errForeignAnswer)
	case a.Rcode != dns.RcodeSuccess:
		return fmt.Errorf("rcode %s: %w", dns.RcodeToString[a.Rcode], errForeignAnswer)
	case len(a.Answer) != 1:
		return fmt.Errorf("%d records: %w", len(a.Answer), errForeignAnswer)
	}
	txt, ok := a.Answer[0].(*dns.TXT)
	switch {
	case !ok || len(txt.Txt) != 1:
		return fmt.Errorf("no token: %w", errForeignAnswer)
	case txt.Txt[0] != token:
		return fmt.Errorf("another token: %w", errWrongAnswer)
	}
	return nil
}
