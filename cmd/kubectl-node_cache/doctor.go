// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
)

// doctorTimeout bounds the time of doctor, whose checks wait for replies one after the other.
const doctorTimeout = 2 * time.Minute

func doctorCommand(c *cluster) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor NODE",
		Short: "Check how a node's DNS queries reach its agent",
		Long: `Check how a node's DNS queries reach its agent: run "node-cache doctor" in the agent's pod
on NODE. "kubectl node-cache status" lists the nodes. Then show the namespaces that opt
in, with their pods on NODE, if you may list namespaces and pods.

Exit code 0: no check failed; 1: a check failed, or doctor did not run; 2: invalid command
line.`,
		Args: cli.UsageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			result := c.show(cmd, args[0], doctorTimeout, "doctor")
			return errors.Join(result, c.showOptIns(cmd, args[0]))
		},
	}
}

// showOptIns prints the namespaces that opt in, with their pods on a node, as far as they can be had.
func (c *cluster) showOptIns(cmd *cobra.Command, name string) error {
	n, err := c.oneNode(cmd.Context(), name)
	if err != nil {
		return nil //nolint:nilerr // show has reported it
	}
	rows, err := statuses(c, cmd, []*node{n})
	if err != nil {
		return nil //nolint:nilerr // show has reported it
	}
	namespaces, _ := c.optIns(cmd.Context(), addresses(rows), name) // status tells why not
	return cli.PrintPlain(cmd.OutOrStdout(), []byte(optInTable(namespaces)))
}

// show runs the agent's program in the pod of a node, prints what it prints, and fails with its exit code.
func (c *cluster) show(cmd *cobra.Command, name string, timeout time.Duration, args ...string) error {
	n, err := c.oneNode(cmd.Context(), name)
	if err != nil {
		return err
	}
	pod, err := n.agent()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	r, err := c.exec(ctx, pod.Name, args...)
	switch {
	case isDenied(err):
		return c.apiError(err)
	case err != nil:
		return errors.New("node " + n.name + ": " + cell(err.Error()))
	}
	err = errors.Join(cli.PrintPlain(cmd.OutOrStdout(), r.stdout.Bytes()), cli.PrintPlain(cmd.ErrOrStderr(), r.stderr.Bytes()))
	if err == nil && r.code != cli.ExitOK {
		return cli.ExitError(r.code)
	}
	return err
}
