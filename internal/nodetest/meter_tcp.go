// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// oneTCP is a client that sends one query after the other over one connection.
func (m *Meter) oneTCP(load, rate int) {
	var conn net.Conn
	m.pace(rate, func(int) { // a client that waited for an answer does not catch up
		i := m.begin(load)
		var err error
		if conn != nil && ended(conn) {
			_ = conn.Close()
			conn = nil
		}
		if conn == nil {
			conn, err = m.dial("tcp", m.config.Timeout)
		}
		if err == nil {
			err = m.ask(conn, i, m.config.Timeout) // a session that waits sends nothing
		}
		if err != nil {
			m.fail(i, err)
			if conn != nil {
				_ = conn.Close()
				conn = nil
			}
		}
	})
	if conn != nil {
		_ = conn.Close()
	}
}

// fresh is a client with a new port for each query.
func (m *Meter) fresh(load int, l Load) {
	var queries sync.WaitGroup
	defer queries.Wait()
	limit := m.config.Timeout + m.config.Linger
	m.pace(l.Rate, func(n int) {
		for range n {
			i := m.begin(load)
			queries.Go(func() {
				conn, err := m.dial(l.Network, limit)
				if err == nil {
					err = m.ask(conn, i, limit)
					_ = conn.Close()
				}
				if err != nil {
					m.fail(i, err)
				}
			})
		}
	})
}

func (m *Meter) dial(network string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return m.config.Host.Dial(ctx, network, m.config.Target.String())
}

// ask sends query i over a connection on which no other query waits.
func (m *Meter) ask(conn net.Conn, i int, limit time.Duration) error {
	if err := conn.SetDeadline(now().Add(limit)); err != nil {
		return err
	}
	msg, err := exchange(conn, newQuery(uint16(i), m.name(i)))
	if err == nil {
		m.answer(i, msg)
	}
	return err
}

// exchange sends a query over a connection on which no other query waits, and returns the answer.
func exchange(conn net.Conn, query []byte) ([]byte, error) {
	c := dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	msg := make([]byte, dns.MaxMsgSize)
	n, err := c.Read(msg)
	if err == nil && (n < 2 || msg[0] != query[0] || msg[1] != query[1]) {
		err = errors.New("an answer to another query")
	}
	return msg[:max(n, 0)], err
}

// ended reports whether the server has closed an idle connection, which it may do at any time.
func ended(conn net.Conn) bool {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	is := false
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		is = n == 0 && err == nil || err != nil && !errors.Is(err, unix.EAGAIN)
		return true
	})
	return is || err != nil
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
