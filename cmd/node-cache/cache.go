// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/status"
)

// cacheFlags are the common flags of the cache commands.
type cacheFlags struct {
	admin  string
	output string
}

func cacheCommand() *cobra.Command {
	flags := &cacheFlags{}
	cmd := &cobra.Command{
		Use:   "cache get|top|flush",
		Short: "Show or flush the cache of the agent on this host",
		Long: `Show or flush the cache of the agent on this host. The command uses the agent's
admin server, which shows its cache only to clients on the same host.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return &usageError{fmt.Errorf("cache: missing subcommand: get, top, or flush")}
		},
	}
	cmd.PersistentFlags().StringVar(&flags.admin, "admin", defaultAdmin(), adminUsage)
	cmd.PersistentFlags().StringVar(&flags.output, "output", "text", "`FORMAT` of the output: text or json")
	cmd.AddCommand(cacheGetCommand(flags), cacheTopCommand(flags), cacheFlushCommand(flags))
	return cmd
}

func cacheGetCommand(flags *cacheFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME [TYPE]",
		Short: "Show the cache entries of a name",
		Long: `Show the cache entries of a name: for each type its state, age, remaining TTL, hits,
and records. An entry of type * is an NXDOMAIN: the name does not exist.

Exit code 0: there is an entry; 3: there is none; 1: the agent did not respond.`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := domainName(args[0])
			if err != nil {
				return &usageError{err}
			}
			parameters := url.Values{"name": {name}}
			if len(args) == 2 {
				if _, err := status.RecordType(args[1]); err != nil {
					return &usageError{err}
				}
				parameters.Set("type", strings.ToUpper(args[1]))
			}
			return flags.show(cmd, "/cache/get", parameters, entriesText)
		},
	}
}

func cacheTopCommand(flags *cacheFlags) *cobra.Command {
	var n int
	var by string
	cmd := &cobra.Command{
		Use:   "top [-n NUMBER] [--by hits|size]",
		Short: "List the entries with the most hits or bytes",
		Long: `List the cache entries with the most hits since they were stored, or the largest
ones.

Exit code 0: there is an entry; 3: there is none; 1: the agent did not respond.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 || n > 1000 {
				return &usageError{fmt.Errorf("-n %d: not from 1 to 1000", n)}
			}
			if by != "hits" && by != "size" {
				return &usageError{fmt.Errorf("--by %q: not hits or size", by)}
			}
			return flags.show(cmd, "/cache/top", url.Values{"n": {strconv.Itoa(n)}, "by": {by}}, topText)
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 20, "number of entries, at most 1000")
	cmd.Flags().StringVar(&by, "by", "hits", "rank by `hits` or size")
	return cmd
}

func cacheFlushCommand(flags *cacheFlags) *cobra.Command {
	var zone string
	var all bool
	cmd := &cobra.Command{
		Use:   "flush NAME | --zone ZONE | --all",
		Short: "Remove a name, a zone, or all entries",
		Long: `Remove the entries of a name, of a zone with every name below it, or all entries. The
next query for a removed name goes to its upstream; until that answers, the name has
no stale answer.

Exit code 0: the entries are removed, or there were none; 1: an error.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			parameters, err := flushParameters(args, cmd.Flags().Changed("zone"), zone, all)
			if err != nil {
				return &usageError{err}
			}
			return flags.flush(cmd, parameters)
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "remove `ZONE` and every name below it")
	cmd.Flags().BoolVar(&all, "all", false, "remove all entries")
	return cmd
}

// flushParameters returns the request for a flush: of a name, a zone, or all.
func flushParameters(args []string, zoned bool, zone string, all bool) (url.Values, error) {
	chosen := len(args)
	for _, is := range []bool{zoned, all} {
		if is {
			chosen++
		}
	}
	if chosen != 1 {
		return nil, fmt.Errorf("cache flush: give exactly one of NAME, --zone, and --all")
	}
	what, text := "name", zone
	switch {
	case all:
		return url.Values{"all": {"1"}}, nil
	case zoned:
		what = "zone"
	default:
		text = args[0]
	}
	name, err := domainName(text)
	if err != nil {
		return nil, err
	}
	return url.Values{what: {name}}, nil
}

// domainName returns a name of the command line with its final dot.
func domainName(text string) (string, error) {
	name := dns.Fqdn(text)
	if _, ok := dns.IsDomainName(name); !ok || text == "" {
		return "", fmt.Errorf("%q: not a domain name", text)
	}
	return name, nil
}

// client returns a client of the agent that the flags name.
func (l *cacheFlags) client() (*adminClient, error) {
	if l.output != "text" && l.output != "json" {
		return nil, &usageError{fmt.Errorf("--output %q: not text or json", l.output)}
	}
	c, err := newAdminClient(l.admin)
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

// show prints a page of entries, as JSON or formatted by text.
func (l *cacheFlags) show(cmd *cobra.Command, path string, parameters url.Values, text func([]status.CacheEntry) string) error {
	c, err := l.client()
	if err != nil {
		return err
	}
	page, err := c.do(cmd.Context(), http.MethodGet, path, parameters)
	if err != nil {
		return err
	}
	var view status.CacheView
	if err := json.Unmarshal(page, &view); err != nil {
		return fmt.Errorf("reading %s of the agent at %s: %w", path, l.admin, err)
	}
	out := string(page)
	if l.output == "text" {
		out = text(view.Entries)
	}
	if _, err := fmt.Fprint(cmd.OutOrStdout(), out); err != nil {
		return err
	}
	if len(view.Entries) == 0 {
		return exitError(exitNothing)
	}
	return nil
}

// flush sends a flush and prints the number of removed entries.
func (l *cacheFlags) flush(cmd *cobra.Command, parameters url.Values) error {
	c, err := l.client()
	if err != nil {
		return err
	}
	page, err := c.do(cmd.Context(), http.MethodPost, "/cache/flush", parameters)
	if err != nil {
		return err
	}
	var done status.CacheFlushed
	if err := json.Unmarshal(page, &done); err != nil {
		return fmt.Errorf("reading /cache/flush of the agent at %s: %w", l.admin, err)
	}
	out := string(page)
	if l.output == "text" {
		out = fmt.Sprintf("removed: %s\n", entries(done.Flushed))
		if done.Flushed == 0 {
			out = "no entry matched\n"
		}
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), out)
	return err
}

// entriesText formats the entries of a name: a line for each entry, and its records.
func entriesText(list []status.CacheEntry) string {
	if len(list) == 0 {
		return "no entries\n"
	}
	var b strings.Builder
	for i := range list {
		e := &list[i]
		if i > 0 {
			b.WriteByte('\n')
		}
		_, _ = fmt.Fprintf(&b, "%s %s\n", e.Name, kind(e))
		_, _ = fmt.Fprintf(&b, "  %s, %s, age %s, %s, %s, %d bytes\n", e.State, e.Rcode, seconds(e.Age), left(e.Left), hits(e.Hits), e.Bytes)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, record := range e.Records {
			_, _ = fmt.Fprintf(w, "  %s\n", columned(record))
		}
		_ = w.Flush()
	}
	return b.String()
}

// topText formats entries as a table.
func topText(list []status.CacheEntry) string {
	if len(list) == 0 {
		return "the cache is empty\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "HITS\tBYTES\tSTATE\tRCODE\tAGE\tLEFT\tNAME\tTYPE")
	for i := range list {
		e := &list[i]
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Hits, e.Bytes, e.State, e.Rcode, seconds(e.Age), seconds(e.Left), e.Name, kind(e))
	}
	_ = w.Flush()
	return b.String()
}

// kind returns the type of an entry and its other distinguishing marks.
func kind(e *status.CacheEntry) string {
	parts := append([]string{e.Type}, e.Flags...)
	if e.Subnet != "" {
		parts = append(parts, "subnet "+e.Subnet)
	}
	return strings.Join(parts, " ")
}

// columned separates the first fields of a record (name, TTL, class, type) by tabs.
func columned(record string) string { return strings.Replace(record, " ", "\t", 4) }

// seconds formats a number of seconds.
func seconds(n int64) string { return (time.Duration(n) * time.Second).String() }

func left(n int64) string {
	if n < 0 {
		return "expired " + seconds(-n) + " ago"
	}
	return "left " + seconds(n)
}

func hits(n int) string {
	switch n {
	case 1:
		return "1 hit"
	case 1<<16 - 1:
		return "65535 hits or more"
	}
	return fmt.Sprintf("%d hits", n)
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
