// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

const (
	dnsPort     = 53
	adminPort   = 9253
	agentName   = "agent"
	owner       = "a1"
	longLease   = time.Minute
	answerLimit = 5 * time.Second // of a client, long even on a busy machine
)

func agent4() netip.Addr { return netip.MustParseAddr("169.254.20.10") }
func agent6() netip.Addr { return netip.MustParseAddr("fd00::a:1") }

// newBackend opens a Backend in the network namespace of a host.
func newBackend(t *testing.T, h *nodetest.Host) *Backend {
	t.Helper()
	var b *Backend
	err := h.Do(func() (err error) {
		b, err = New(slog.New(slog.DiscardHandler))
		return err
	})
	assert.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() }) // some tests close it themselves
	return b
}

// linkLocalRules returns the rules of a dual-stack node with a fallback.
func linkLocalRules(fallback ...netip.AddrPort) rules.Rules {
	return rules.Rules{
		Owner: owner, Mode: rules.LinkLocal, Addresses: []netip.Addr{agent4(), agent6()},
		Port: dnsPort, Admin: adminPort, Fallback: fallback,
	}
}

func transparentRules() rules.Rules {
	r := linkLocalRules()
	r.Mode, r.Services = rules.Transparent, []netip.Addr{nodetest.ServiceIPv4(), nodetest.ServiceIPv6()}
	return r
}

// apply calls Apply and returns whether it changed anything.
func apply(t *testing.T, b *Backend, r rules.Rules) bool {
	t.Helper()
	changed, err := b.Apply(t.Context(), r)
	assert.NoError(t, err)
	return changed
}

// renew renews all leases of r.
func renew(t *testing.T, b *Backend, r rules.Rules) {
	t.Helper()
	assert.NoError(t, b.Renew(t.Context(), keys(r), longLease))
}

func keys(r rules.Rules) []netip.Addr {
	var all []netip.Addr
	for _, l := range r.Leases() {
		all = append(all, l.Key)
	}
	return all
}

// ruleset returns the output of nft list ruleset in a host.
func ruleset(t *testing.T, h *nodetest.Host, args ...string) string {
	t.Helper()
	out, err := h.Output(context.Background(), "nft", append(args, "list", "ruleset")...)
	if err != nil {
		t.Fatalf("nft list ruleset: %v\n%s", err, out)
	}
	return out
}

// A session is a TCP connection that stays open from query to query.
type session struct {
	net.Conn
	name string
}

func dialSession(t *testing.T, h *nodetest.Host, addr netip.AddrPort) *session {
	t.Helper()
	c, err := h.Dial(t.Context(), "tcp", addr.String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	s := &session{Conn: c, name: h.Name + " to " + addr.String()}
	if _, err := s.ask(); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask returns the name of the server that answers.
func (s *session) ask() (string, error) {
	return exchange(s.Conn, true)
}

// askMarked sends a query with the agent's mark from an address.
func askMarked(h *nodetest.Host, from netip.Addr, to netip.AddrPort, network string) (who string, err error) {
	err = h.Do(func() error {
		d := net.Dialer{Timeout: answerLimit, Control: func(_, _ string, c syscall.RawConn) (failed error) {
			err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, rules.Mark) })
			if err == nil {
				err = failed
			}
			return err
		}}
		switch {
		case !from.IsValid():
		case network == "tcp":
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		default:
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		c, err := d.DialContext(context.Background(), network, to.String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		who, err = exchange(c, network == "tcp")
		return err
	})
	return who, err
}

// exchange sends a query on c and returns the name of the server.
func exchange(c net.Conn, stream bool) (string, error) {
	if err := c.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return "", err
	}
	q := new(dns.Msg)
	q.SetQuestion("who.", dns.TypeTXT)
	msg, err := q.Pack()
	if err != nil {
		return "", err
	}
	if stream {
		msg = append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
	}
	if _, err := c.Write(msg); err != nil {
		return "", err
	}
	buf := make([]byte, 4096)
	n := 0
	if stream {
		if _, err = io.ReadFull(c, buf[:2]); err == nil {
			n, err = io.ReadFull(c, buf[:binary.BigEndian.Uint16(buf)])
		}
	} else {
		n, err = c.Read(buf)
	}
	if err != nil {
		return "", err
	}
	var a dns.Msg
	if err := a.Unpack(buf[:n]); err != nil {
		return "", err
	}
	return a.Answer[0].(*dns.TXT).Txt[0], nil
}
