// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
)

// A cacheLook is what the flags of the cache's commands say.
type cacheLook struct {
	admin  string
	output string
}

func cacheCommand() *cobra.Command {
	look := &cacheLook{}
	cmd := &cobra.Command{
		Use:   "cache get|top|flush",
		Short: "Look into the cache of the agent on this machine, or empty it",
		Long: `Look into the cache of the agent on this machine, or empty it. It is asked over its
admin server, which shows its cache to clients on the same machine only.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return &usageError{fmt.Errorf("cache: one of get, top and flush is missing")}
		},
	}
	cmd.PersistentFlags().StringVar(&look.admin, "admin", defaultAdmin(), adminUsage)
	cmd.PersistentFlags().StringVar(&look.output, "output", "text", "`FORMAT` of the output: text or json")
	cmd.AddCommand(cacheGetCommand(look), cacheTopCommand(look), cacheFlushCommand(look))
	return cmd
}

func cacheGetCommand(look *cacheLook) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME [TYPE]",
		Short: "Show what the cache holds of a name",
		Long: `Show what the cache holds of a name: for each type how good it is, how old it is and
what is left of its time, how often it was asked for, and the records. An entry of
type * says that the name does not exist.

Exit code 0: there is an entry; 3: nothing is held; 1: no reply.`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := domainName(args[0])
			if err != nil {
				return &usageError{err}
			}
			parameters := url.Values{"name": {name}}
			if len(args) == 2 {
				if _, err := agent.RecordType(args[1]); err != nil {
					return &usageError{err}
				}
				parameters.Set("type", strings.ToUpper(args[1]))
			}
			return look.show(cmd, "/cache/get", parameters, entriesText)
		},
	}
}

func cacheTopCommand(look *cacheLook) *cobra.Command {
	var n int
	var by string
	cmd := &cobra.Command{
		Use:   "top [-n NUMBER] [--by hits|size]",
		Short: "List what is asked for most, or takes most room",
		Long: `List the entries of the cache that were asked for most often since they were stored,
or that take most room.

Exit code 0: there is an entry; 3: nothing is held; 1: no reply.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 || n > 1000 {
				return &usageError{fmt.Errorf("-n %d: not from 1 to 1000", n)}
			}
			if by != "hits" && by != "size" {
				return &usageError{fmt.Errorf("--by %q: not hits or size", by)}
			}
			return look.show(cmd, "/cache/top", url.Values{"n": {strconv.Itoa(n)}, "by": {by}}, topText)
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 20, "how many, at most 1000")
	cmd.Flags().StringVar(&by, "by", "hits", "what counts: `hits` or size")
	return cmd
}

func cacheFlushCommand(look *cacheLook) *cobra.Command {
	var zone string
	var all bool
	cmd := &cobra.Command{
		Use:   "flush NAME | --zone ZONE | --all",
		Short: "Forget a name, all of a zone, or everything",
		Long: `Forget what the cache holds of a name, of a zone with every name below it, or of
everything. What is forgotten is asked for again when somebody wants it; until then
a flushed name has no stale answer to fall back on. Exit code 0: it is forgotten, or
was not there; 1: not.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			parameters, err := flushParameters(args, cmd.Flags().Changed("zone"), zone, all)
			if err != nil {
				return &usageError{err}
			}
			return look.flush(cmd, parameters)
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "this `ZONE`, itself and every name below it")
	cmd.Flags().BoolVar(&all, "all", false, "everything")
	return cmd
}

// flushParameters says to the agent what to forget: one of a name, a zone and all.
func flushParameters(args []string, zoned bool, zone string, all bool) (url.Values, error) {
	chosen := len(args)
	for _, is := range []bool{zoned, all} {
		if is {
			chosen++
		}
	}
	if chosen != 1 {
		return nil, fmt.Errorf("cache flush: one of NAME, --zone and --all is needed, and only one")
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

// domainName is a name of the command line with its last dot.
func domainName(text string) (string, error) {
	name := dns.Fqdn(text)
	if _, ok := dns.IsDomainName(name); !ok || text == "" {
		return "", fmt.Errorf("%q: not a domain name", text)
	}
	return name, nil
}

// client is a client of the agent that the flags name.
func (l *cacheLook) client() (*adminClient, error) {
	if l.output != "text" && l.output != "json" {
		return nil, &usageError{fmt.Errorf("--output %q: not text or json", l.output)}
	}
	c, err := newAdminClient(l.admin)
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

// show prints a page with entries, as it is or by text.
func (l *cacheLook) show(cmd *cobra.Command, path string, parameters url.Values, text func([]agent.CacheEntry) string) error {
	c, err := l.client()
	if err != nil {
		return err
	}
	page, err := c.do(cmd.Context(), http.MethodGet, path, parameters)
	if err != nil {
		return err
	}
	var view agent.CacheView
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

// flush has the agent forget and says how much.
func (l *cacheLook) flush(cmd *cobra.Command, parameters url.Values) error {
	c, err := l.client()
	if err != nil {
		return err
	}
	page, err := c.do(cmd.Context(), http.MethodPost, "/cache/flush", parameters)
	if err != nil {
		return err
	}
	var done agent.CacheFlushed
	if err := json.Unmarshal(page, &done); err != nil {
		return fmt.Errorf("reading /cache/flush of the agent at %s: %w", l.admin, err)
	}
	out := string(page)
	if l.output == "text" {
		out = fmt.Sprintf("forgotten: %s\n", entries(done.Flushed))
		if done.Flushed == 0 {
			out = "nothing was held: there was nothing to forget\n"
		}
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), out)
	return err
}
