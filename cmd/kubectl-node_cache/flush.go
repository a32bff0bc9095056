// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
)

func flushCommand(c *cluster) *cobra.Command {
	var zone string
	cmd := &cobra.Command{
		Use:   "flush NAME | --zone ZONE",
		Short: "Remove a name or a zone from the cache of every node",
		Long: `Remove the cache entries of NAME, or of ZONE and all names below it, on every node. The
next query for a removed name goes to its upstream.

Exit code 0: every agent did it; 1: one did not, and still has the entries; 2: invalid
command line.`,
		Args: cli.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			what, err := flushArguments(args, zone, cmd.Flags().Changed("zone"))
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			nodes, missing, err := c.nodes(cmd.Context())
			if err != nil {
				return err
			}
			var entries atomic.Int64
			err = c.each(cmd, nodes, func(ctx context.Context, n *node) error {
				removed, err := flush(ctx, c, n, what)
				entries.Add(removed)
				return err
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "flushed on %d of %d nodes: %d entries removed\n", succeeded(nodes), len(nodes)+missing, entries.Load())
			return errors.Join(err, failures(cmd.ErrOrStderr(), nodes, missing))
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "remove `ZONE` and every name below it")
	return cmd
}

// flushArguments returns the arguments of `node-cache cache flush` after the options.
func flushArguments(args []string, zone string, zoned bool) ([]string, error) {
	if zoned == (len(args) == 1) {
		return nil, errors.New("flush: give exactly one of NAME and --zone")
	}
	if zoned {
		name, err := cli.DomainName(zone)
		return []string{"--zone=" + name}, err
	}
	name, err := cli.DomainName(args[0])
	return []string{"--", name}, err
}

// flush flushes the caches of a node's agents, the oldest first, because an older agent hands its cache over to a newer one.
func flush(ctx context.Context, c *cluster, n *node, what []string) (removed int64, err error) {
	pods, err := n.running()
	if err != nil {
		return 0, err
	}
	for _, pod := range pods {
		page, err := c.output(ctx, pod.Name, append([]string{"cache", "flush", "-o", "json"}, what...)...)
		if err != nil {
			return removed, err
		}
		var done struct{ Flushed int64 }
		if err := cli.ReadJSON(page, &done); err != nil {
			return removed, fmt.Errorf("reading the number of entries: %w", err)
		}
		removed += done.Flushed
	}
	return removed, nil
}
