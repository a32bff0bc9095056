// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/intercept"
)

// probeAll sends all probes at once, from the network namespace of the process.
func (c *Config) probeAll(ctx context.Context, probes []Probe) []Outcome {
	outcomes := make([]Outcome, len(probes))
	var group sync.WaitGroup
	for i, p := range probes {
		group.Go(func() { outcomes[i] = c.probe(ctx, p) })
	}
	group.Wait()
	return outcomes
}

// probe sends one probe and waits for its outcome.
func (c *Config) probe(ctx context.Context, p Probe) Outcome {
	o := Outcome{Probe: p}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	began := c.Now()
	answer, err := c.exchange(ctx, &o)
	o.Took = c.Now().Sub(began)
	if err != nil {
		o.Error, o.Refused = shortError(err, c.Timeout), errors.Is(err, syscall.ECONNREFUSED)
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

func (c *Config) exchange(ctx context.Context, o *Outcome) (*dns.Msg, error) {
	var conn net.Conn
	var err error
	if o.Own {
		conn, err = intercept.DialMarked(ctx, network(o.TCP), o.To)
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, network(o.TCP), o.To.String())
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if from, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
		o.From = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	}
	q := question(&o.Probe)
	client := &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	// A lost packet is not a finding: a query over UDP is repeated once.
	for try := range 2 {
		if err := client.WriteMsg(q); err != nil {
			return nil, err
		}
		if try == 0 && !o.TCP {
			_ = conn.SetReadDeadline(c.Now().Add(c.Timeout / 2))
		}
		answer, err := readAnswer(client, q)
		if err == nil || o.TCP || try == 1 || !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return answer, err
		}
		_ = conn.SetReadDeadline(c.Now().Add(c.Timeout / 2))
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
