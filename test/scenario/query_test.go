// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A reply is what a client got, and after how long.
type reply struct {
	raw  []byte   // nil: none
	msg  *dns.Msg // nil: none, or it cannot be read
	took time.Duration
}

// A client waits for one reply.
type client struct {
	sent time.Time
	got  chan reply
}

// Reply implements [wire.Replier].
func (c *client) Reply(msg []byte, _ *wire.SendBatch) {
	r := reply{took: time.Since(c.sent)}
	if msg != nil {
		r.raw, r.msg = append([]byte(nil), msg...), new(dns.Msg)
		if r.msg.Unpack(r.raw) != nil {
			r.msg = nil
		}
	}
	c.got <- r
}

// send sends a packet through a worker.
func send(worker server.Worker, pkt []byte, f flags) chan reply {
	c := &client{sent: time.Now(), got: make(chan reply, 1)}
	from := wire.Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(f.from), 5353), Stream: f.tcp}
	out, verdict := worker.AnswerFromMemory(pkt, &from, c.sent, nil)
	switch verdict {
	case wire.Answered:
		c.Reply(out, nil)
	case wire.Missed:
		worker.Resolve(&from, c.sent, c)
	case wire.Dropped:
		c.Reply(nil, nil)
	}
	worker.Flush(time.Now())
	return c.got
}

func (s *scenarioRun) query(args []string) error {
	list, f, err := packets(args)
	for _, pkt := range list {
		s.last = <-send(s.worker, pkt, f)
	}
	s.lastQuery = args
	return err
}

func (s *scenarioRun) ask(args []string) error {
	list, f, err := packets(args)
	for _, pkt := range list {
		s.waiting = append(s.waiting, send(s.worker, pkt, f))
	}
	return err
}

// packets returns the queries of one command.
func packets(args []string) (list [][]byte, f flags, err error) {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(args[0]), queryType(args[1]))
	if f, err = parseFlags(args[2:], m); err != nil {
		return nil, f, err
	}
	for i := range max(f.names, 1) {
		if f.names > 0 {
			m.Question[0].Name = strconv.Itoa(i+1) + "-" + dns.Fqdn(args[0])
		}
		pkt, err := m.Pack()
		if err != nil {
			return nil, f, err
		}
		list = append(list, pkt)
	}
	return list, f, nil
}

func (s *scenarioRun) settle([]string) error {
	s.settled = nil
	for _, c := range s.waiting {
		s.last = <-c
		s.settled = append(s.settled, s.last)
	}
	s.waiting = nil
	return nil
}

func (s *scenarioRun) packet(args []string) error {
	pkt, err := hex.DecodeString(args[0])
	if err != nil {
		return err
	}
	f, err := parseFlags(args[1:], new(dns.Msg))
	if err == nil {
		s.last = <-send(s.worker, pkt, f)
	}
	return err
}

// queryType reads a type by its name or as TYPE with a number.
func queryType(name string) uint16 {
	if n, err := strconv.ParseUint(strings.TrimPrefix(name, "TYPE"), 10, 16); err == nil {
		return uint16(n)
	}
	return dns.StringToType[name]
}

// flags are what a query has beside its message.
type flags struct {
	tcp   bool
	from  string
	names int // 0: one query, for the name itself
}

// parseFlags applies flags to a query.
func parseFlags(words []string, m *dns.Msg) (f flags, err error) {
	f.from = "10.0.0.9"
	m.SetEdns0(1232, false)
	opt := m.IsEdns0()
	add := func(code uint16, data []byte) {
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: code, Data: data})
	}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "+tcp":
			f.tcp = true
		case "+do":
			opt.SetDo()
		case "+cd":
			m.CheckingDisabled = true
		case "+ad":
			m.AuthenticatedData = true
		case "+z":
			m.Zero = true
		case "+norec":
			m.RecursionDesired = false
		case "+noedns":
			m.Extra = nil
		case "+explain":
			add(65305, nil)
		case "+size":
			var n int
			n, err = strconv.Atoi(value)
			opt.SetUDPSize(uint16(n))
		case "+version":
			var n int
			n, err = strconv.Atoi(value)
			opt.SetVersion(uint8(n))
		case "+opcode":
			m.Opcode, err = strconv.Atoi(value)
		case "+class":
			m.Question[0].Qclass = dns.StringToClass[value]
		case "+subnet":
			var prefix netip.Prefix
			prefix, err = netip.ParsePrefix(value)
			opt.Option = append(opt.Option, subnet(prefix))
		case "+cookie":
			opt.Option = append(opt.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: value})
		case "+option":
			code, text, _ := strings.Cut(value, ":")
			var n int
			var data []byte
			if n, err = strconv.Atoi(code); err == nil {
				data, err = hex.DecodeString(text)
			}
			add(uint16(n), data)
		case "+from":
			f.from = value
		case "+names":
			f.names, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("no such flag: %s", word)
		}
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

func subnet(p netip.Prefix) *dns.EDNS0_SUBNET {
	family := uint16(1)
	if p.Addr().Is6() {
		family = 2
	}
	return &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: family, SourceNetmask: uint8(p.Bits()), Address: p.Addr().AsSlice()}
}
