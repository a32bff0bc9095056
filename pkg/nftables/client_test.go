// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/nodelab"
	"github.com/nodecache/node-cache/pkg/rules"
)

// A session is a TCP connection that stays open from query to query.
type session struct {
	net.Conn
	name string
}

func dialSession(t *testing.T, h *nodelab.Host, addr netip.AddrPort) *session {
	t.Helper()
	c, err := h.Dial(t.Context(), "tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s := &session{Conn: c, name: h.Name + " to " + addr.String()}
	if _, err := s.ask(); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask returns who answers.
func (s *session) ask() (string, error) {
	return exchange(s.Conn, true)
}

// askMarked asks with the mark of the agent's own packets, from an address.
func askMarked(h *nodelab.Host, from netip.Addr, to netip.AddrPort, network string) (who string, err error) {
	err = h.Do(func() error {
		d := net.Dialer{Timeout: time.Second, Control: func(_, _ string, c syscall.RawConn) (failed error) {
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

// exchange asks on c who is there.
func exchange(c net.Conn, stream bool) (string, error) {
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
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
