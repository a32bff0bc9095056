// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/rules"
)

// A prober sends probes from the network namespace of the process.
type prober struct {
	timeout time.Duration // of one probe
	now     func() time.Time
}

// probeAll sends all probes at once.
func (a prober) probeAll(ctx context.Context, probes []Probe) []Outcome {
	outcomes := make([]Outcome, len(probes))
	var group sync.WaitGroup
	for i, p := range probes {
		group.Go(func() { outcomes[i] = a.probe(ctx, p) })
	}
	group.Wait()
	return outcomes
}

// probe sends one probe and waits for its outcome.
func (a prober) probe(ctx context.Context, p Probe) Outcome {
	o := Outcome{Probe: p}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	began := a.now()
	answer, err := a.exchange(ctx, &o)
	o.Took = a.now().Sub(began)
	if err != nil {
		o.Error, o.Refused = shortError(err, a.timeout), errors.Is(err, syscall.ECONNREFUSED)
		return o
	}
	o.Answer, o.Records = dns.RcodeToString[answer.Rcode], len(answer.Answer)
	if p.Name == "" && o.Records == 1 {
		if txt, ok := answer.Answer[0].(*dns.TXT); ok && len(txt.Txt) == 1 {
			o.Token = txt.Txt[0]
		}
	}
	return o
}

func (a prober) exchange(ctx context.Context, o *Outcome) (*dns.Msg, error) {
	d := net.Dialer{}
	if o.Own {
		d.Control = setMark
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.To.Addr(), 0))
		if o.TCP {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(o.To.Addr(), 0))
		}
	}
	conn, err := d.DialContext(ctx, network(o.TCP), o.To.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if from, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
		o.From = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	}
	q := question(&o.Probe)
	c := &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	// A lost packet is not a finding: a query over UDP is repeated once.
	for try := range 2 {
		if err := c.WriteMsg(q); err != nil {
			return nil, err
		}
		if try == 0 && !o.TCP {
			_ = conn.SetReadDeadline(a.now().Add(a.timeout / 2))
		}
		answer, err := readAnswer(c, q)
		if err == nil || o.TCP || try == 1 || !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return answer, err
		}
		_ = conn.SetReadDeadline(a.now().Add(a.timeout / 2))
	}
	panic("unreachable")
}

// readAnswer waits for the answer to q and ignores other messages.
func readAnswer(c *dns.Conn, q *dns.Msg) (*dns.Msg, error) {
	for {
		answer, err := c.ReadMsg()
		switch {
		case answer == nil || err != nil && answer.Id != q.Id:
			return nil, err
		case answer.Id == q.Id && answer.Response:
			return answer, err
		}
	}
}

// question returns a query for the probe's name, or the self-query.
func question(p *Probe) *dns.Msg {
	if p.Name != "" {
		return new(dns.Msg).SetQuestion(p.Name, dns.TypeA)
	}
	name := intercept.SelfName
	if p.Agent != "" {
		name = p.Agent + "." + name
	}
	q := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	return q
}

// setMark gives a socket's packets the agent's mark.
func setMark(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, rules.Mark)
	})
	return errors.Join(err, failed)
}

// shortError returns the shortest useful text for err.
func shortError(err error, timeout time.Duration) string {
	var slow net.Error
	var errno syscall.Errno
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return fmt.Sprintf("no answer in %s", timeout)
	case errors.Is(err, io.EOF):
		return "the connection was closed without an answer"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// Attributes of conntrack entries (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet        = 1 // IPCTNL_MSG_CT_GET
	ctTupleOrig  = 1
	ctZone       = 18
	ctTupleIP    = 1
	ctTupleProto = 2
	ctIPv4Src    = 1 // its destination follows it, then the two of IPv6
	ctIPv6Src    = 3
	ctProtoNum   = 1
	ctProtoSrc   = 2
	ctProtoDst   = 3
)

// A tracker looks up conntrack entries, each by its addresses and ports: the whole table
// of a node may have a million entries.
//
// It uses its own socket type: the kernel marks its single answer as the first of several,
// and [netlink.Conn] would wait for the others.
type tracker struct{ fd int }

func newTracker() (*tracker, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}) // a safeguard
	}
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	return &tracker{fd: fd}, nil
}

func (t *tracker) close() { _ = unix.Close(t.fd) }

// note records in o whether the node tracks the connection of a probe, in the default zone
// or in the agent's.
func (t *tracker) note(o *Outcome) {
	for _, zone := range []uint16{0, rules.Zone} {
		found, err := t.has(o, zone)
		if err != nil {
			o.TrackedErr = err.Error()
			return
		}
		o.Tracked = o.Tracked || found
	}
}

func (t *tracker) has(o *Outcome, zone uint16) (bool, error) {
	tuple, err := encodeTuple(o, zone)
	if err != nil {
		return false, err
	}
	family := byte(unix.AF_INET)
	if o.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	data := append([]byte{family, unix.NFNETLINK_V0, 0, 0}, tuple...)
	request, err := netlink.Message{
		Header: netlink.Header{Length: uint32(unix.NLMSG_HDRLEN + len(data)), Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | ctGet, Flags: netlink.Request},
		Data:   data,
	}.MarshalBinary()
	if err != nil {
		return false, fmt.Errorf("encoding a conntrack entry: %w", err)
	}
	err = t.execute(request)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking up a conntrack entry: %w", err)
	}
	return true, nil
}

// execute sends a request and reads the single answer. Only its error code matters.
func (t *tracker) execute(request []byte) error {
	if err := unix.Sendto(t.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 64<<10)
	n, _, err := unix.Recvfrom(t.fd, answer, 0)
	switch {
	case err != nil:
		return err
	case n < unix.NLMSG_HDRLEN:
		return errors.New("truncated answer")
	case n >= unix.NLMSG_HDRLEN+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR:
		return unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])))
	}
	return nil
}

func encodeTuple(o *Outcome, zone uint16) ([]byte, error) {
	src := uint16(ctIPv4Src)
	if o.To.Addr().Is6() {
		src = ctIPv6Src
	}
	proto := uint8(unix.IPPROTO_UDP)
	if o.TCP {
		proto = unix.IPPROTO_TCP
	}
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(ctTupleOrig, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(ctTupleIP, func(ip *netlink.AttributeEncoder) error {
			ip.Bytes(src, o.From.Addr().AsSlice())
			ip.Bytes(src+1, o.To.Addr().AsSlice())
			return nil
		})
		tuple.Nested(ctTupleProto, func(p *netlink.AttributeEncoder) error {
			p.Uint8(ctProtoNum, proto)
			p.Uint16(ctProtoSrc, o.From.Port())
			p.Uint16(ctProtoDst, o.To.Port())
			return nil
		})
		return nil
	})
	if zone != 0 {
		e.Uint16(ctZone, zone)
	}
	return e.Encode()
}

// conntrackFill reads how full the conntrack table is from the directory of its sysctls.
func conntrackFill(dir string) Conntrack {
	var c Conntrack
	for _, e := range []struct {
		file string
		to   *int
	}{{"nf_conntrack_count", &c.Count}, {"nf_conntrack_max", &c.Max}} {
		text, err := os.ReadFile(dir + "/" + e.file)
		if errors.Is(err, os.ErrNotExist) {
			return Conntrack{Err: errors.New("conntrack is not loaded")}
		}
		if err != nil {
			return Conntrack{Err: err}
		}
		if *e.to, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return Conntrack{Err: fmt.Errorf("reading %s: %w", e.file, err)}
		}
	}
	return c
}
