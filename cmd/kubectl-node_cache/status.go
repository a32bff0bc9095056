// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
)

// A summary has the fields of status.Status that the table shows. The plugin cannot import that package, which needs Linux.
type summary struct {
	State    string `json:"state"`
	Version  string `json:"version"`
	Problems []struct {
		Where string `json:"where"`
		What  string `json:"what"`
	} `json:"problems"`
	Queries struct {
		HitRatio *float64 `json:"hitRatio"`
	} `json:"queries"`
	Node struct {
		Intercept struct {
			Mode     string   `json:"mode"`
			Standby  bool     `json:"standby"`
			Fallback []string `json:"fallback"`
			From     string   `json:"fallbackFrom"`
			Leases   []struct {
				Address     string `json:"address"`
				Held        bool   `json:"held"`
				Fallback    string `json:"fallback"`
				FallbackWhy string `json:"fallbackWhy"`
			} `json:"leases"`
		} `json:"intercept"`
	} `json:"node"`
}

// A statusRow is a node's row in the table, or its object in the JSON output.
type statusRow struct {
	Node   string          `json:"node"`
	Error  string          `json:"error,omitempty"`
	Status json.RawMessage `json:"status,omitempty"` // the agent's response to /status

	summary summary
}

func statusCommand(c *cluster) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status [-o json]",
		Short: "Show the status of every agent",
		Long: `Show the status of every agent, a line for each node: its version, whether it is ready,
its hit ratio, the leases that it holds (without one the node's queries go to the
fallback), and its first problem. With -o json: the page /status of each.

Then the namespaces that opt in, with their pods: those that ask the agents, those to
recreate, and those that are left alone. You need to list namespaces and pods.

Exit code 0: every agent answered, in any state; 1: one did not, or no policy acts on
the namespaces; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, missing, err := c.nodes(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := statuses(c, cmd, nodes)
			if err != nil {
				return err
			}
			namespaces, failed := c.optIns(cmd.Context(), addresses(rows), "")
			if output == "json" {
				err = printRows(cmd.OutOrStdout(), rows, namespaces)
			} else {
				err = cli.PrintPlain(cmd.OutOrStdout(), []byte(statusTable(rows)+optInTable(namespaces)))
			}
			err = errors.Join(err, failures(cmd.ErrOrStderr(), nodes, missing))
			if failed != nil {
				cli.PrintError(cmd.ErrOrStderr(), failed.Error(), hint.Of(failed))
				err = errors.Join(err, cli.ExitError(cli.ExitFailed))
			}
			return err
		},
	}
	cli.AddOutput(cmd, cmd.Flags(), &output)
	return cmd
}

// statuses asks the agents for their status.
func statuses(c *cluster, cmd *cobra.Command, nodes []*node) ([]*statusRow, error) {
	rows := make([]*statusRow, len(nodes))
	byNode := map[*node]*statusRow{}
	for i, n := range nodes {
		rows[i] = &statusRow{Node: n.name}
		byNode[n] = rows[i]
	}
	err := c.each(cmd, nodes, func(ctx context.Context, n *node) error {
		pod, err := n.agent()
		if err != nil {
			return err
		}
		page, err := c.output(ctx, pod.Name, "status", "-o", "json")
		if err != nil {
			return err
		}
		return byNode[n].read(page)
	})
	for _, n := range nodes {
		if n.err != nil {
			byNode[n].Error = cell(n.err.Error())
		}
	}
	return rows, err
}

// addresses returns those of the agents' leases.
func addresses(rows []*statusRow) []string {
	var list []string
	for _, r := range rows {
		for _, l := range r.summary.Node.Intercept.Leases {
			if !slices.Contains(list, l.Address) {
				list = append(list, l.Address)
			}
		}
	}
	return list
}

// read fills the row from an agent's response to /status.
func (r *statusRow) read(page []byte) error {
	if err := cli.ReadJSON(page, &r.summary); err != nil {
		return fmt.Errorf("reading the status: %w", err)
	}
	r.Status = page
	return nil
}

// printRows prints the rows as JSON, one at a time: the indented page of a hostile node can be many times as long as the page.
func printRows(out io.Writer, rows []*statusRow, namespaces []*optIn) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("    ", "  ")
	text.WriteString("{\n  \"nodes\": [\n")
	for i, r := range rows {
		text.WriteString("    ")
		if err := e.Encode(r); err != nil {
			return err
		}
		if i < len(rows)-1 {
			text.Truncate(text.Len() - 1)
			text.WriteString(",\n")
		}
		if err := cli.PrintPlain(out, text.Bytes()); err != nil {
			return err
		}
		text.Reset()
	}
	text.WriteString("  ],\n  \"namespaces\": ")
	e.SetIndent("  ", "  ")
	if err := e.Encode(slices.Concat([]*optIn{}, namespaces)); err != nil {
		return err
	}
	text.WriteString("}\n")
	return cli.PrintPlain(out, text.Bytes())
}

// statusTable formats the rows as a table with a header.
func statusTable(rows []*statusRow) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NODE\tVERSION\tREADY\tHITS\tLEASES\tPROBLEMS")
	for _, r := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(r.cells(), "\t"))
	}
	_ = w.Flush()
	return b.String()
}

// cells returns the columns of a row.
func (r *statusRow) cells() []string {
	if r.Error != "" {
		return []string{cell(r.Node), "-", "-", "-", "-", "no status"} // failures prints why
	}
	s := &r.summary
	ready, hits, leases, problem := "yes", "-", "-", "-"
	if s.State != "ready" {
		ready, problem = "no", strings.TrimPrefix(s.State, "not ready: ")
	}
	if s.Queries.HitRatio != nil {
		hits = fmt.Sprintf("%.1f %%", 100**s.Queries.HitRatio)
	}
	if all := s.Node.Intercept.Leases; len(all) > 0 {
		held := 0
		for _, lease := range all {
			if lease.Held {
				held++
			}
		}
		leases = fmt.Sprintf("%d/%d", held, len(all))
	}
	if len(s.Problems) > 0 {
		problem = s.Problems[0].Where + ": " + s.Problems[0].What
	}
	if more := len(s.Problems) - 1; more > 0 {
		problem += fmt.Sprintf(" (%d more)", more)
	}
	return []string{cell(r.Node), cmp.Or(cell(s.Version), "-"), ready, hits, leases, cell(problem)}
}
