// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
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
	flags  cli.QueryFlags
	server netip.AddrPort
	to     netip.Addr // address of the pod whose answer is explained; zero: the sender's
	name   string
	rrtype uint16
}

func queryCommand() *cobra.Command {
	q := question{}
	cmd := &cobra.Command{
		Use:   "query [flags] NAME [TYPE]",
		Short: "Send a DNS query to an agent and print the response",
		Long: `Send a DNS query to an agent and print the response: its records, and a line with the
rcode, the server and the time that it took. TYPE is a record type, such as AAAA; the
default is A.

--explain also shows where the answer is from, such as the cache or the upstream that gave
it, why a name is denied, and the state of a cache entry. Only an agent on this host
explains.

Exit code 0: there are records; 3: the name, or the type of the name, does not exist; 1:
no response, or another rcode; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := q.parse(args); err != nil {
				return &cli.UsageError{Err: err}
			}
			return q.ask(cmd)
		},
	}
	q.flags.Add(cmd)
	return cmd
}

// parse parses the command line.
func (q *question) parse(args []string) error {
	server := q.flags.Server
	if pod := q.flags.Pod; pod != "" {
		var err error
		if q.to, err = netip.ParseAddr(pod); err != nil {
			return fmt.Errorf("--pod %q: not an IP address", pod)
		}
		q.flags.Explain = true
	}
	ip, err := netip.ParseAddr(server)
	switch {
	case server == "":
		cfg := hostConfig(hostRole(firstProcess), agentFiles()...)
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
	if q.flags.TCP {
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
	a := queryReply{Rcode: dns.RcodeToString[reply.Rcode], Records: records, Server: q.server, Network: network, Latency: took.Seconds()}
	a.readOptions(reply.IsEdns0())
	if q.flags.Output == "json" {
		err = cli.PrintJSON(cmd.OutOrStdout(), &a)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(append(records, a.comments(q.flags.Explain)...), "\n"))
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
	if q.flags.Explain {
		opt := m.IsEdns0()
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionExplain, Data: q.to.AsSlice()})
	}
	c := &dns.Client{Net: network, Timeout: q.flags.Timeout}
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

// A queryReply is the response to a query, for programs.
type queryReply struct {
	Rcode       string          `json:"rcode"`
	Records     []string        `json:"records"`                  // in presentation form
	Errors      []extendedError `json:"extendedErrors,omitempty"` // RFC 8914
	Explanation map[string]any  `json:"explanation,omitempty"`    // see parseExplanation
	Server      netip.AddrPort  `json:"server"`
	Network     string          `json:"network"`        // "udp" or "tcp"
	Latency     float64         `json:"latencySeconds"` // until the response

	explained string // text of the explanation
}

// An extendedError is one EDNS option of RFC 8914.
type extendedError struct {
	Code uint16 `json:"code"`
	Name string `json:"name"`           // of the code; empty: unknown
	Text string `json:"text,omitempty"` // of the server
}

// readOptions reads the extended errors and the explanation from the response's OPT record, if there is one.
func (a *queryReply) readOptions(opt *dns.OPT) {
	if opt == nil {
		return
	}
	for _, option := range opt.Option {
		switch o := option.(type) {
		case *dns.EDNS0_EDE:
			a.Errors = append(a.Errors, extendedError{o.InfoCode, dns.ExtendedErrorCodeToString[o.InfoCode], plain.Line(o.ExtraText)})
		case *dns.EDNS0_LOCAL:
			if o.Code == wire.OptionExplain {
				a.explained = plain.Line(string(o.Data))
				a.Explanation = parseExplanation(a.explained)
			}
		}
	}
}

// parseExplanation reads the members of an explanation, name=value. A duration is a number of seconds, and its name ends in
// Seconds; yes and no are true and false. Text that is no member is left out.
func parseExplanation(text string) map[string]any {
	members := map[string]any{}
	for word := range strings.FieldsSeq(text) {
		name, value, ok := strings.Cut(word, "=")
		switch d, err := time.ParseDuration(value); {
		case !ok || name == "":
		case err == nil && (name == "age" || name == "left" || name == "took"):
			members[name+"Seconds"] = d.Seconds()
		case value == "yes", value == "no":
			members[name] = value == "yes"
		default:
			members[name] = value
		}
	}
	return members
}

// comments returns the lines after the records. They begin with a semicolon, as in zone files.
func (a *queryReply) comments(explain bool) (lines []string) {
	for _, e := range a.Errors {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("; extended error %d (%s) %s", e.Code, cmp.Or(e.Name, "unknown"), e.Text)))
	}
	switch {
	case a.explained != "":
		lines = append(lines, "; explained: "+a.explained)
	case explain:
		lines = append(lines, "; not explained: only an agent does that, and only to clients on its own machine")
	}
	took := time.Duration(a.Latency * float64(time.Second)).Round(10 * time.Microsecond)
	return append(lines, fmt.Sprintf("; %s, %d records, %s over %s in %s", a.Rcode, len(a.Records), a.Server, a.Network, took))
}
