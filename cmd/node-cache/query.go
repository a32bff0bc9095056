// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/plain"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A question holds the command line of query.
type question struct {
	server  netip.AddrPort
	tcp     bool
	explain bool
	to      netip.Addr // address of the pod whose answer is explained; zero: the sender's
	timeout time.Duration
	output  string
	name    string
	rrtype  uint16
}

func queryCommand() *cobra.Command {
	q := question{}
	var server, pod string
	cmd := &cobra.Command{
		Use:   "query [flags] NAME [TYPE]",
		Short: "Send a DNS query to an agent and print the response",
		Long: `Send a DNS query to an agent and print the response: its records, and a line with the
rcode, the server and the time that it took. TYPE is a record type, such as AAAA; the
default is A.

--explain also shows where the answer is from, such as the cache or an upstream, and the
state of a cache entry. Only an agent on this host explains.

Exit code 0: there are records; 3: the name, or the type of the name, does not exist; 1:
no response, or another rcode; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.parse(server, pod, args); err != nil {
				return &cli.UsageError{Err: err}
			}
			return q.ask(cmd)
		},
	}
	cmd.Flags().StringVar(&server, "server", "", "`IP[:PORT]` of the agent; default: the agent on this host, and port 53 for an IP alone")
	cmd.Flags().BoolVar(&q.tcp, "tcp", false, "ask over TCP instead of UDP")
	cmd.Flags().BoolVar(&q.explain, "explain", false, "show where the answer is from")
	cmd.Flags().StringVar(&pod, "pod", "", "`IP` of a pod of this node: explain the answer that this pod gets, with its search path; implies --explain")
	cmd.Flags().DurationVar(&q.timeout, "timeout", 5*time.Second, "the longest `TIME` to wait for the response, such as 500ms")
	cli.AddOutput(cmd, cmd.Flags(), &q.output)
	return cmd
}

// parse parses the command line.
func (q *question) parse(server, pod string, args []string) error {
	if pod != "" {
		var err error
		if q.to, err = netip.ParseAddr(pod); err != nil {
			return fmt.Errorf("--pod %q: not an IP address", pod)
		}
		q.explain = true
	}
	ip, err := netip.ParseAddr(server)
	switch {
	case server == "":
		cfg := hostConfig(agentFiles()...)
		q.server = netip.AddrPortFrom(cfg.Listen.Addresses[0], cfg.Listen.Port)
	case err == nil:
		q.server = netip.AddrPortFrom(ip, 53)
	default:
		if q.server, err = netip.ParseAddrPort(server); err != nil {
			return fmt.Errorf("--server %q: not an IP address with or without a port", server)
		}
	}
	if q.name, err = cli.DomainName(args[0]); err != nil {
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
	records := make([]string, len(reply.Answer))
	for i, rr := range reply.Answer {
		fields := strings.Split(rr.String(), "\t")
		for f := range fields {
			fields[f] = plain.Line(fields[f])
		}
		records[i] = strings.Join(fields, "\t")
	}
	rcode, comments := dns.RcodeToString[reply.Rcode], q.comments(reply.IsEdns0())
	if q.output == "json" {
		err = cli.PrintJSON(cmd.OutOrStdout(), map[string]any{
			"rcode": rcode, "records": records, "comments": comments, "server": q.server, "network": network, "latencySeconds": took.Seconds(),
		})
	} else {
		comments = append(comments, fmt.Sprintf("%s, %d records, %s over %s in %s", rcode, len(records), q.server, network, took.Round(10*time.Microsecond)))
		_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(append(records, "; "+strings.Join(comments, "\n; ")), "\n"))
	}
	if err != nil {
		return err
	}
	switch {
	case reply.Rcode == dns.RcodeNameError, reply.Rcode == dns.RcodeSuccess && len(reply.Answer) == 0:
		return cli.ExitError(exitNothing)
	case reply.Rcode != dns.RcodeSuccess:
		return cli.ExitError(cli.ExitFailed)
	}
	return nil
}

func (q *question) exchange(ctx context.Context, network string) (*dns.Msg, time.Duration, error) {
	m := new(dns.Msg).SetQuestion(q.name, q.rrtype)
	m.SetEdns0(1232, false)
	if q.explain {
		opt := m.IsEdns0()
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionExplain, Data: q.to.AsSlice()})
	}
	c := &dns.Client{Net: network, Timeout: q.timeout}
	return c.ExchangeContext(ctx, m, q.server.String())
}

// exchangeError adds a hint to the error of a query without a response.
func (q *question) exchangeError(err error) error {
	advice := silentHint(err, "check the agent's /status page")
	if errors.Is(err, syscall.ECONNREFUSED) {
		advice = "nothing listens there; use an address of listen.addresses with listen.port"
	}
	return &hint.Error{Err: fmt.Errorf("asking %s for %s: %w", q.server, q.name, err), Hint: advice}
}

// comments returns the RFC 8914 errors in the response's OPT record, and with --explain the explanation.
func (q *question) comments(opt *dns.OPT) []string {
	list, explanation := []string{}, "not explained: only an agent does that, and only to clients on its own machine"
	if opt != nil {
		for _, option := range opt.Option {
			switch o := option.(type) {
			case *dns.EDNS0_EDE:
				list = append(list, fmt.Sprintf("extended error %d (%s) %s", o.InfoCode, dns.ExtendedErrorCodeToString[o.InfoCode], plain.Line(o.ExtraText)))
			case *dns.EDNS0_LOCAL:
				if o.Code == wire.OptionExplain {
					explanation = "explained: " + plain.Line(string(o.Data))
				}
			}
		}
	}
	if q.explain {
		list = append(list, explanation)
	}
	return list
}
