// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/plain"
)

func cacheCommand() *cobra.Command {
	flags := &adminFlags{}
	cmd := &cobra.Command{
		Use:   "cache get|top|flush",
		Short: "Show or flush the cache of the agent on this host",
		Long: `Show or flush the cache of the agent on this host. The agent must have the unix socket
that admin.socket in its configuration names.`,
		Args: cli.UnknownCommand,
		RunE: func(*cobra.Command, []string) error {
			return &cli.UsageError{Err: fmt.Errorf("cache: missing subcommand: get, top, or flush")}
		},
	}
	flags.add(cmd)
	cmd.AddCommand(cacheGetCommand(flags), cacheTopCommand(flags), cacheFlushCommand(flags))
	return cmd
}

func cacheGetCommand(flags *adminFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME [TYPE]",
		Short: "Show the cache entries of a name",
		Long: `Show the cache entries of a name, of one type such as AAAA or of all: the state, age,
remaining TTL, hits and records of each. Type * stands for an NXDOMAIN: the name does not
exist. The last line lists the types that the kernel answers to pods (kernel.hits).

Exit code 0: there is an entry; 3: there is none; 1: the agent did not respond; 2: invalid
command line.`,
		Args: cli.UsageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := cli.DomainName(args[0])
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			parameters := url.Values{"name": {name}}
			if len(args) == 2 {
				if _, err := status.RecordType(args[1]); err != nil {
					return &cli.UsageError{Err: err}
				}
				parameters.Set("type", strings.ToUpper(args[1]))
			}
			return flags.showEntries(cmd, "/cache/get", parameters, entriesText)
		},
	}
}

func cacheTopCommand(flags *adminFlags) *cobra.Command {
	var n int
	var by string
	cmd := &cobra.Command{
		Use:   "top [-n NUMBER] [--by hits|size]",
		Short: "List the entries with the most hits or bytes",
		Long: `List the cache entries with the most hits since they were stored, or with --by size the
largest ones.

Exit code 0: there is an entry; 3: the cache is empty; 1: the agent did not respond; 2:
invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 || n > 1000 {
				return &cli.UsageError{Err: fmt.Errorf("-n %d: not from 1 to 1000", n)}
			}
			if by != "hits" && by != "size" {
				return &cli.UsageError{Err: fmt.Errorf("--by %q: not hits or size", by)}
			}
			return flags.showEntries(cmd, "/cache/top", url.Values{"n": {strconv.Itoa(n)}, "by": {by}}, topText)
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 20, "`NUMBER` of entries, 1 to 1000")
	cmd.Flags().StringVar(&by, "by", "hits", "`KEY` to sort by: hits or size (bytes)")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"hits", "size"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func cacheFlushCommand(flags *adminFlags) *cobra.Command {
	var zone string
	var all bool
	cmd := &cobra.Command{
		Use:   "flush NAME | --zone ZONE | --all",
		Short: "Remove the entries of a name, of a zone, or all",
		Long: `Remove the cache entries of NAME, of ZONE and all names below it, or all entries. The next
query for a removed name goes to its upstream. Until that answers, the name has no stale
answer either.

Exit code 0: the entries are removed, or there were none; 1: the agent did not respond; 2:
invalid command line.`,
		Args: cli.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			parameters, err := flushParameters(args, cmd.Flags().Changed("zone"), zone, all)
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			var done map[string]int
			return flags.show(cmd, http.MethodPost, "/cache/flush", parameters, &done, func() string {
				switch n := done[status.CacheFlushed]; n {
				case 0:
					return "no entry matched\n"
				case 1:
					return "removed: 1 entry\n"
				default:
					return fmt.Sprintf("removed: %d entries\n", n)
				}
			})
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "remove `ZONE` and every name below it")
	cmd.Flags().BoolVar(&all, "all", false, "remove all entries")
	return cmd
}

// flushParameters returns the parameters of /cache/flush: for a name, a zone, or the whole cache.
func flushParameters(args []string, zoned bool, zone string, all bool) (url.Values, error) {
	named := len(args) == 1
	what, text := "zone", zone
	switch {
	case all && !named && !zoned:
		return url.Values{"all": {"1"}}, nil
	case all, named == zoned:
		return nil, fmt.Errorf("cache flush: give exactly one of NAME, --zone, and --all")
	case named:
		what, text = "name", args[0]
	}
	name, err := cli.DomainName(text)
	return url.Values{what: {name}}, err
}

// show requests a page, reads it into view, and prints it: as JSON, or with text, which formats view.
func (f *adminFlags) show(cmd *cobra.Command, method, path string, parameters url.Values, view any, text func() string) error {
	page, err := f.page(cmd.Context(), method, path, parameters)
	if err != nil {
		return err
	}
	if err := cli.ReadJSON(page, view); err != nil {
		return fmt.Errorf("reading %s of the agent at %s: %w", path, f.admin, err)
	}
	if f.output == "text" {
		page = []byte(text())
	}
	return cli.PrintPage(cmd.OutOrStdout(), page, f.output)
}

// showEntries prints a page of entries.
func (f *adminFlags) showEntries(cmd *cobra.Command, path string, parameters url.Values, text func([]status.CacheEntry) string) error {
	var view status.CacheView
	err := f.show(cmd, http.MethodGet, path, parameters, &view, func() string {
		if len(view.Kernel) > 0 {
			return text(view.Entries) + "pods get these types from the kernel: " + plain.Line(strings.Join(view.Kernel, ", ")) + "\n"
		}
		return text(view.Entries)
	})
	if err == nil && len(view.Entries) == 0 {
		return cli.ExitError(exitNothing)
	}
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
		_, _ = fmt.Fprintf(&b, "%s %s\n", plain.Line(e.Name), kind(e))
		_, _ = fmt.Fprintf(&b, "  %s, %s, age %s, %s, %s, %d bytes\n", plain.Line(e.State), plain.Line(e.Rcode), seconds(e.Age), left(e), hits(e.Hits), e.Bytes)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, record := range e.Records {
			_, _ = fmt.Fprintf(w, "  %s\n", strings.Replace(plain.Line(record), " ", "\t", 4)) // tabs after the record's name, TTL, class, and type
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
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Hits, e.Bytes, plain.Line(e.State), plain.Line(e.Rcode), seconds(e.Age), seconds(e.Left), plain.Line(e.Name), kind(e))
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
	return plain.Line(strings.Join(parts, " "))
}

// seconds formats a number of seconds.
func seconds(n int64) string { return (time.Duration(n) * time.Second).String() }

func left(e *status.CacheEntry) string {
	switch {
	case e.Kept:
		return "kept by push"
	case e.Left < 0:
		return "expired " + seconds(-e.Left) + " ago"
	}
	return "left " + seconds(e.Left)
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
