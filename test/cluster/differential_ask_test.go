// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// A transport is a way to ask.
type transport struct {
	name    string
	network string
	edns    uint16 // size that the client takes, 0 for no EDNS
	do      bool
}

// limit is the most bytes of an answer.
func (t *transport) limit() int {
	switch {
	case t.network == "tcp":
		return dns.MaxMsgSize
	case t.edns == 0:
		return dns.MinMsgSize
	}
	return int(t.edns)
}

// transports are the ways that names are asked for. Every name is asked for over the first, and over one of the others.
func transports() []transport {
	return []transport{
		{name: "UDP with EDNS", network: "udp", edns: 1232},
		{name: "UDP", network: "udp"},
		{name: "TCP", network: "tcp"},
		{name: "TCP with DO", network: "tcp", edns: 1232, do: true},
		{name: "UDP with DO", network: "udp", edns: 1024, do: true},
	}
}

// perSession is how many queries go over one TCP session. Servers end sessions that go on for long.
const perSession = 100

// A client asks one server, one question after the other.
type client struct {
	server netip.AddrPort
	udp    *dns.Conn
	tcp    *dns.Conn
	left   int // queries until the TCP session is replaced
	id     uint16
	buf    [dns.MaxMsgSize]byte
}

// patience is how long a server has for one answer, and tries how often it is asked.
const (
	answerTimeout = time.Second
	attempts      = 3
)

// ask returns the answer.
func (c *client) ask(name string, qtype uint16, via *transport, tries int) (view, error) {
	c.id++
	q := new(dns.Msg).SetQuestion(name, qtype)
	q.Id = c.id
	if via.edns != 0 {
		q.SetEdns0(via.edns, via.do)
	}
	packet, err := q.Pack()
	if err != nil {
		return view{}, fmt.Errorf("packing %s: %w", name, err)
	}
	for range tries {
		var v view
		if v, err = c.exchange(packet, via); err == nil {
			return v, nil
		}
		if via.network == "tcp" {
			c.left = 0
		}
	}
	return view{}, fmt.Errorf("asking %s for %s %s over %s: %w", c.server, name, dns.Type(qtype), via.name, err)
}

func (c *client) exchange(packet []byte, via *transport) (view, error) {
	conn, err := c.connection(via)
	if err != nil {
		return view{}, err
	}
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return view{}, err
	}
	if _, err := conn.Write(packet); err != nil {
		return view{}, err
	}
	for {
		n, err := conn.Read(c.buf[:])
		if err != nil {
			return view{}, err
		}
		m := new(dns.Msg)
		if err := m.Unpack(c.buf[:n]); err != nil {
			return view{}, fmt.Errorf("unpacking % x: %w", c.buf[:n], err)
		}
		if m.Id == c.id { // another is the answer to a query that was sent twice
			return viewOf(m, n), nil
		}
	}
}

// connection is the socket for the transport.
func (c *client) connection(via *transport) (*dns.Conn, error) {
	if via.network == "udp" {
		if c.udp == nil {
			conn, err := net.Dial("udp", c.server.String())
			if err != nil {
				return nil, err
			}
			c.udp = &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
		}
		return c.udp, nil
	}
	if c.left == 0 {
		if c.tcp != nil {
			_ = c.tcp.Close()
		}
		conn, err := net.Dial("tcp", c.server.String())
		if err != nil {
			return nil, err
		}
		c.tcp, c.left = &dns.Conn{Conn: conn}, perSession
	}
	c.left--
	return c.tcp, nil
}

func (c *client) close() {
	for _, conn := range []*dns.Conn{c.udp, c.tcp} {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// A question is one thing to ask of both servers.
type question struct {
	subject
	qtype uint16
	via   transport
}

// A serverPair is CoreDNS and node-cache.
type serverPair struct{ coredns, nodeCache netip.AddrPort }

// compareAll asks both servers everything. What does not fit into an answer over UDP is asked again over TCP.
func (p serverPair) compareAll(questions []question) ([]comparison, error) {
	results, err := p.askAll(questions)
	if err != nil {
		return nil, err
	}
	var cut []int
	var again []question
	for i := range results {
		if c := &results[i]; c.via.network == "udp" && (c.truncated() || c.diff&facetAdditional != 0) {
			cut = append(cut, i)
			again = append(again, question{c.subject, c.qtype, transports()[2]})
		}
	}
	wholes, err := p.askAll(again)
	for i, at := range cut {
		results[at].whole = &wholes[i].nodeCache
	}
	return append(results, wholes...), err
}

// truncated reports whether one of the answers is not whole.
func (c *comparison) truncated() bool { return c.coredns.msg.Truncated || c.nodeCache.msg.Truncated }

// askAll asks both servers everything and returns the comparisons in the order of the questions.
func (p serverPair) askAll(questions []question) ([]comparison, error) {
	const workers = 6
	results := make([]comparison, len(questions))
	errs := make([]error, workers)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			them, us := &client{server: p.coredns}, &client{server: p.nodeCache}
			defer them.close()
			defer us.close()
			for i := w; i < len(questions); i += workers {
				if results[i], errs[w] = compareOne(them, us, &questions[i]); errs[w] != nil {
					return
				}
			}
		})
	}
	group.Wait()
	return results, errors.Join(errs...)
}

func compareOne(them, us *client, q *question) (comparison, error) {
	c := comparison{subject: q.subject, qtype: q.qtype, via: q.via}
	theirTries := attempts
	if q.silent {
		theirTries = 1
	}
	var err error
	c.coredns, err = them.ask(q.name, q.qtype, &q.via, theirTries)
	silent := errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil && !silent {
		return c, err
	}
	if c.nodeCache, err = us.ask(q.name, q.qtype, &q.via, attempts); err != nil {
		return c, err
	}
	if silent {
		c.coredns, c.diff = view{msg: new(dns.Msg)}, facetSilence
		return c, nil
	}
	c.compare()
	if c.target != "" && c.diff != facetNone {
		followed, err := us.ask(c.target, q.qtype, &q.via, attempts)
		if err != nil {
			return c, err
		}
		c.followed = &followed
	}
	if q.qtype == dns.TypePTR && c.diff&facetAnswer != 0 {
		c.dangling, err = c.askTargets(them, us)
	}
	return c, err
}

// askTargets asks each server for the targets that only its own PTR records have. It reports whether CoreDNS denies all
// of its, and node-cache knows all of ours.
func (c *comparison) askTargets(them, us *client) (bool, error) {
	for _, side := range []struct {
		server     *client
		own, other []string
		want       int
	}{{them, c.coredns.answer, c.nodeCache.answer, dns.RcodeNameError}, {us, c.nodeCache.answer, c.coredns.answer, dns.RcodeSuccess}} {
		for _, text := range side.own {
			if slices.Contains(side.other, text) {
				continue
			}
			v, err := side.server.ask(text[strings.LastIndex(text, "\t")+1:], dns.TypeA, &c.via, attempts)
			if err != nil || v.msg.Rcode != side.want {
				return false, err
			}
		}
	}
	return true, nil
}
