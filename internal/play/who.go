// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// What the two say that they are, asked for hostname.bind.
const (
	agentName   = "the agent of this node"
	centralName = "the central resolver"
)

const (
	dnsPort   = 53
	askTime   = 500 * time.Millisecond // for one question
	untilPoll = 50 * time.Millisecond
)

// A dialer connects as net.Dialer.DialContext does.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// ask asks a server over "udp" or "tcp" who it is.
func ask(ctx context.Context, dial dialer, network string, addr netip.Addr) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, err := dial(ctx, network, netip.AddrPortFrom(addr, dnsPort).String())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	q := new(dns.Msg)
	q.SetQuestion("hostname.bind.", dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	m, _, err := new(dns.Client).ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: conn})
	if err != nil {
		return "", err
	}
	for _, rr := range m.Answer {
		if txt, ok := rr.(*dns.TXT); ok && len(txt.Txt) == 1 {
			return txt.Txt[0], nil
		}
	}
	return "", fmt.Errorf("answered with %s", dns.RcodeToString[m.Rcode])
}

// awaitServer waits until name answers at all addresses, over UDP and TCP.
func awaitServer(ctx context.Context, dial dialer, name string, addrs ...netip.Addr) error {
	tick := time.NewTicker(untilPoll)
	defer tick.Stop()
	for {
		err := checkServers(ctx, dial, name, addrs)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// checkServers returns an error with the addresses where name does not answer.
func checkServers(ctx context.Context, dial dialer, name string, addrs []netip.Addr) error {
	var errs []error
	for _, addr := range addrs {
		for _, network := range []string{"udp", "tcp"} {
			switch got, err := ask(ctx, dial, network, addr); {
			case err != nil:
				errs = append(errs, fmt.Errorf("%s over %s: %w", addr, network, err))
			case got != name:
				errs = append(errs, fmt.Errorf("%s over %s: %s answers", addr, network, got))
			}
		}
	}
	return errors.Join(errs...)
}

// whoAnswers is the command of the shell that says who answers the pods.
func whoAnswers(ctx context.Context, args []string, stdout, stderr io.Writer) (code int, err error) {
	flags := flag.NewFlagSet("who-answers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	wait := flags.Duration("wait", 0, "wait for so `long` until it is the agent")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	dial := new(net.Dialer).DialContext
	if *wait > 0 {
		limited, cancel := context.WithTimeout(ctx, *wait)
		defer cancel()
		if err := awaitServer(limited, dial, agentName, agentIPv4(), agentIPv6()); err != nil {
			return 0, err
		}
	}
	for _, addr := range []netip.Addr{agentIPv4(), agentIPv6()} {
		for _, network := range []string{"udp", "tcp"} {
			who, err := ask(ctx, dial, network, addr)
			if err != nil {
				who, code = "no answer: "+err.Error(), 1
			}
			if _, err := fmt.Fprintf(stdout, "%-17s %s  %s\n", addr, network, who); err != nil {
				return 0, err
			}
		}
	}
	return code, nil
}
