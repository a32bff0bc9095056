// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/cli"
)

// topView is what `node-cache top` shows.
type topView struct {
	flags adminFlags
	cli.TopFlags

	before, after topPage
}

// A topPage is the page /top and when it was read.
type topPage struct {
	top.Page
	at time.Time
}

func topCommand() *cobra.Command {
	v := &topView{}
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Show which pods of this node send the most queries",
		Long: `Show which pods of this node send the most queries, as rates. On a terminal the table is
renewed until q is pressed: p, w, n and d group by pod, workload, namespace and domain
name, and s sorts by the next column. Otherwise one table is printed after --interval.
With -o json: counts since the agent knows each pod, not rates.

    SEARCH   share of queries for names that do not exist and end in the cluster domain:
             clients try them by their search list; ndots: 2 in a pod's dnsConfig helps
    LATENCY  average time to the reply; answers from memory count as 0

The agent needs pods.identity and admin.socket in its configuration.

Exit code 0: shown; 1: the agent did not respond, or lacks pods.identity; 2: invalid
command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := v.Check(); err != nil {
				return err
			}
			return v.run(cmd)
		},
	}
	v.flags.add(cmd)
	v.Add(cmd, "n")
	return cmd
}

// run renews the table if input and output are terminals; otherwise, and for JSON, it prints once.
func (v *topView) run(cmd *cobra.Command) error {
	out, isFile := cmd.OutOrStdout().(*os.File)
	live := isFile && term.IsTerminal(int(out.Fd())) && term.IsTerminal(int(os.Stdin.Fd()))
	if v.flags.output == "json" || !live {
		return v.once(cmd)
	}
	if err := v.read(cmd.Context()); err != nil {
		return err
	}
	state, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("reading keys: %w", err)
	}
	defer func() { _ = term.Restore(int(os.Stdin.Fd()), state) }()
	return v.live(cmd.Context(), out, keysOf(os.Stdin))
}

// once prints the page /top as JSON, or the table of one interval.
func (v *topView) once(cmd *cobra.Command) error {
	if v.flags.output == "json" {
		return v.flags.show(cmd, http.MethodGet, "/top", v.parameters(), &v.after, nil)
	}
	if err := v.read(cmd.Context()); err != nil {
		return err
	}
	select {
	case <-time.After(v.Interval):
	case <-cmd.Context().Done():
		return cmd.Context().Err()
	}
	if err := v.read(cmd.Context()); err != nil {
		return err
	}
	_, err := io.WriteString(cmd.OutOrStdout(), v.table(v.Number))
	return err
}

// keysOf passes on the keys that are pressed. Its goroutine may read until the program ends.
func keysOf(in io.Reader) <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		var key [1]byte
		for {
			if _, err := in.Read(key[:]); err != nil {
				return
			}
			keys <- key[0]
		}
	}()
	return keys
}

// live renews the table on the terminal until q or Ctrl-C is pressed, or ctx ends.
func (v *topView) live(ctx context.Context, out *os.File, keys <-chan byte) error {
	tick := time.NewTicker(v.Interval)
	defer tick.Stop()
	for {
		rows := v.Number
		if _, height, err := term.GetSize(int(out.Fd())); err == nil {
			rows = min(rows, max(1, height-4))
		}
		text := "\x1b[H\x1b[2J" + strings.ReplaceAll(v.table(rows)+"\nq quit   p pod   w workload   n namespace   d domain name   s sort", "\n", "\r\n")
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := v.read(ctx); err != nil {
				return err
			}
		case key, open := <-keys:
			const interrupt = 3 // Ctrl-C of a terminal in raw mode
			if !open || key == 'q' || key == interrupt {
				_, err := io.WriteString(out, "\r\n")
				return err
			}
			v.press(key)
		}
	}
}

// press changes what the table shows.
func (v *topView) press(key byte) {
	switch key {
	case 'p', 'w', 'n', 'd':
		v.By = top.Groups()[strings.IndexByte("pwnd", key)]
	case 's':
		columns := top.Columns()
		v.Sort = columns[(slices.Index(columns, v.Sort)+1)%len(columns)]
	}
}

// read reads the page /top, and keeps the page that was read before it.
func (v *topView) read(ctx context.Context) error {
	page, err := v.flags.page(ctx, http.MethodGet, "/top", v.parameters())
	if err != nil {
		return err
	}
	next := topPage{at: time.Now()}
	if err := cli.ReadJSON(page, &next.Page); err != nil {
		return fmt.Errorf("reading /top of the agent at %s: %w", v.flags.admin, err)
	}
	v.before, v.after = v.after, next
	return nil
}

// parameters returns the parameters of /top.
func (v *topView) parameters() url.Values {
	if v.By == "name" {
		return url.Values{"by": {"name"}}
	}
	return nil
}

// table formats the largest rows.
func (v *topView) table(rows int) string {
	if v.before.at.IsZero() || v.By == "name" && v.before.Names == nil {
		return fmt.Sprintf("counting for %s\n", v.Interval)
	}
	table := top.Table{By: v.By}
	table.Add(&v.before.Page, &v.after.Page, v.after.at.Sub(v.before.at).Seconds())
	return table.Text(v.Sort, rows)
}
