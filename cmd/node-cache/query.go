// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/status"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A question holds the command line of query.
type question struct {
	server  netip.AddrPort
	tcp     bool
	explain bool
	timeout time.Duration
	name    string
	rrtype  uint16
}

func queryCommand() *cobra.Command {
	q := question{}
	var server string
	listen := config.Default(config.Agent).Listen
	cmd := &cobra.Command{
		Use:   "query [--server IP:PORT] [--tcp] [--explain] NAME [TYPE]",
		Short: "Send a query to an agent",
		Long: `Send a query to an agent and print the response. The default TYPE is A. With --explain,
an agent on this host adds the source of its answer, and for one from the cache its
state, age, and remaining TTL.

Exit code 0: there are records; 3: the name or the type does not exist; 1: no
response, or a failure.`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.parse(server, args); err != nil {
				return &usageError{err}
			}
			return q.ask(cmd)
		},
	}
	cmd.Flags().StringVar(&server, "server", netip.AddrPortFrom(listen.Addresses[0], listen.Port).String(), "the agent's `IP[:PORT]`")
	cmd.Flags().BoolVar(&q.tcp, "tcp", false, "use TCP")
	cmd.Flags().BoolVar(&q.explain, "explain", false, "show how an agent on this host got its answer")
	cmd.Flags().DurationVar(&q.timeout, "timeout", 5*time.Second, "timeout")
	return cmd
}

// parse parses the command line.
func (q *question) parse(server string, args []string) error {
	var err error
	if q.server, err = netip.ParseAddrPort(server); err != nil {
		ip, ipErr := netip.ParseAddr(server)
		if ipErr != nil {
			return fmt.Errorf("--server %q: not an IP address with or without a port", server)
		}
		q.server = netip.AddrPortFrom(ip, 53)
	}
	if q.name, err = domainName(args[0]); err != nil {
		return err
	}
	q.rrtype = dns.TypeA
	if len(args) == 2 {
		q.rrtype, err = status.RecordType(args[1])
	}
	return err
}

// ask sends the query and prints the response.
func (q *question) ask(cmd *cobra.Command) error {
	network := "udp"
	if q.tcp {
		network = "tcp"
	}
	reply, took, err := q.exchange(cmd.Context(), network)
	if err == nil && reply.Truncated && network == "udp" {
		network = "tcp"
		reply, took, err = q.exchange(cmd.Context(), network)
	}
	if err != nil {
		return q.exchangeError(err)
	}
	out := cmd.OutOrStdout()
	for _, rr := range reply.Answer {
		_, _ = fmt.Fprintln(out, rr)
	}
	q.printOptions(out, reply.IsEdns0())
	_, _ = fmt.Fprintf(out, "; %s, %d records, %s over %s in %s\n",
		dns.RcodeToString[reply.Rcode], len(reply.Answer), q.server, network, took.Round(10*time.Microsecond))
	switch {
	case reply.Rcode == dns.RcodeNameError, reply.Rcode == dns.RcodeSuccess && len(reply.Answer) == 0:
		return exitError(exitNothing)
	case reply.Rcode != dns.RcodeSuccess:
		return exitError(exitFailed)
	}
	return nil
}

func (q *question) exchange(ctx context.Context, network string) (*dns.Msg, time.Duration, error) {
	m := new(dns.Msg).SetQuestion(q.name, q.rrtype)
	m.SetEdns0(1232, false)
	if q.explain {
		opt := m.IsEdns0()
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionExplain})
	}
	c := &dns.Client{Net: network, Timeout: q.timeout}
	return c.ExchangeContext(ctx, m, q.server.String())
}

// exchangeError adds a hint to the error of a query without a response.
func (q *question) exchangeError(err error) error {
	hint := silentHint(err, "check the agent's /status page")
	if errors.Is(err, syscall.ECONNREFUSED) {
		hint = "nothing listens there; use an address of listen.addresses with listen.port"
	}
	return &status.HintError{Err: fmt.Errorf("asking %s for %s: %w", q.server, q.name, err), Hint: hint}
}

// printOptions prints RFC 8914 errors and the explanation, as comments. Without OPT there are none.
func (q *question) printOptions(out io.Writer, opt *dns.OPT) {
	explanation := "; not explained: only an agent does that, and only to clients on its own machine"
	if opt != nil {
		for _, option := range opt.Option {
			switch o := option.(type) {
			case *dns.EDNS0_EDE:
				_, _ = fmt.Fprintf(out, "; extended error %d (%s) %s\n", o.InfoCode, dns.ExtendedErrorCodeToString[o.InfoCode], o.ExtraText)
			case *dns.EDNS0_LOCAL:
				if o.Code == wire.OptionExplain {
					explanation = "; explained: " + plain(o.Data)
				}
			}
		}
	}
	if q.explain {
		_, _ = fmt.Fprintln(out, explanation)
	}
}

// plain returns text from the network without characters that control a terminal.
func plain(text []byte) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, string(text))
}
