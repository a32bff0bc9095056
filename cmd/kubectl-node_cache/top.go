// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/cli"
)

// A sample is the page /top of a node, read twice.
type sample struct {
	pod           string
	before, after top.Page
	at            time.Time // when before was read
	seconds       float64   // time between before and after
}

func topCommand(c *cluster) *cobra.Command {
	var flags cli.TopFlags
	var output string
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Show which pods of the cluster send the most queries",
		Long: `Show which pods of the cluster send the most queries, as rates over --interval, from all
nodes. The columns are those of "node-cache top". The agents need pods.identity in their
configuration.

Exit code 0: every agent answered; 1: one did not, and its pods are missing; 2: invalid
command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.Check(); err != nil {
				return err
			}
			nodes, missing, err := c.nodes(cmd.Context())
			if err != nil {
				return err
			}
			table, err := sampleAll(c, cmd, nodes, &flags)
			if err != nil {
				return err
			}
			rows := table.Lines(flags.Sort, flags.Number)
			err = show(cmd, output, table.Text(flags.Sort, flags.Number), map[string]any{"nodes": succeeded(nodes), "rows": rows})
			return errors.Join(err, failures(cmd.ErrOrStderr(), nodes, missing))
		},
	}
	flags.Add(cmd, "") // -n is the namespace
	cli.AddOutput(cmd, cmd.Flags(), &output)
	return cmd
}

// sampleAll reads the pages of all nodes, waits for the interval, and reads them again: a node's rates are of the time between
// its own two pages.
func sampleAll(c *cluster, cmd *cobra.Command, nodes []*node, flags *cli.TopFlags) (*top.Table, error) {
	samples := map[*node]*sample{}
	for _, n := range nodes {
		samples[n] = &sample{}
	}
	err := c.each(cmd, nodes, func(ctx context.Context, n *node) error {
		pod, err := n.agent()
		if err != nil {
			return err
		}
		s := samples[n]
		s.pod = pod.Name
		s.before, err = topPage(ctx, c, s.pod, flags.By)
		s.at = time.Now()
		return err
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(flags.Interval):
	case <-cmd.Context().Done():
		return nil, cmd.Context().Err()
	}
	err = c.each(cmd, nodes, func(ctx context.Context, n *node) error {
		s, err := samples[n], error(nil)
		s.after, err = topPage(ctx, c, s.pod, flags.By)
		s.seconds = time.Since(s.at).Seconds()
		return err
	})
	table := &top.Table{By: flags.By}
	for _, n := range nodes {
		if s := samples[n]; n.err == nil {
			table.Add(&s.before, &s.after, s.seconds)
		}
	}
	return table, err
}

// topPage reads the page /top of an agent.
func topPage(ctx context.Context, c *cluster, pod, by string) (page top.Page, err error) {
	text, err := c.output(ctx, pod, "top", "-o", "json", "--by", by)
	if err != nil {
		return page, err
	}
	if err := cli.ReadJSON(text, &page); err != nil {
		return page, fmt.Errorf("reading the pods: %w", err)
	}
	for i := range page.Pods {
		for _, field := range []*string{&page.Pods[i].Namespace, &page.Pods[i].Pod, &page.Pods[i].Workload} {
			*field = cell(*field) // so that a name cannot begin a new line
		}
	}
	for i := range page.Names {
		page.Names[i].Name = cell(page.Names[i].Name)
	}
	return page, nil
}
