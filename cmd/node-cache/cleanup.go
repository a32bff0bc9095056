// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/kernelhits"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/plain"
)

func cleanupCommand() *cobra.Command {
	var file, output string
	var folders []string
	var force, stay bool
	cmd := &cobra.Command{
		Use:   "cleanup [flags]",
		Short: "Remove what agents left on this node",
		Long: `Remove what agents left on this node: the rules of nftables and iptables, the link with
the agent's addresses, and the programs on the interfaces of pods. Run it after an agent
was uninstalled, or was killed and will not come back. If all of that is removed, the
agents' files in the folders of --folder are removed too: snapshots, sockets, and saved
configurations.

The link is found by the name in the configuration, or else by its default name. With
interface.kind lo the configuration is needed: it lists the addresses. While an agent
renews its lease, it is alive, and nothing is removed without --force.

Exit code 0: nothing of an agent is left; 1: something is; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if slices.Contains(folders, "") { // an unset variable in a script gives an empty name
				return &cli.UsageError{Err: errors.New("--folder names no folder")}
			}
			cfg, err := agentConfig(file)
			if err != nil {
				return err
			}
			removed, err := removeAll(
				func() ([]string, error) { return node.Cleanup(cmd.Context(), &cfg, force) }, kernelhits.Cleanup,
				func() ([]string, error) { return removeFiles(folders) },
			)
			switch {
			case output == "json":
				err = errors.Join(err, cli.PrintJSON(cmd.OutOrStdout(), map[string][]string{"removed": append([]string{}, removed...)}))
			case err == nil && len(removed) == 0:
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), "nothing to remove")
			default:
				for _, what := range removed {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "removed: %s\n", plain.Line(what))
				}
			}
			if err == nil && stay {
				<-cmd.Context().Done()
			}
			return err
		},
	}
	cli.AddOutput(cmd, cmd.Flags(), &output)
	cmd.Flags().StringVar(&file, "config", "", "the agent's configuration `FILE`; default: built-in defaults")
	cmd.Flags().StringArrayVar(&folders, "folder", nil, "`FOLDER` from which the agents' files are removed, such as /var/lib/node-cache; may be repeated")
	cmd.Flags().BoolVar(&stay, "stay", false, "after a successful cleanup, wait for SIGTERM: a DaemonSet restarts a program that ends")
	cmd.Flags().BoolVar(&force, "force", false, "remove also while an agent runs, which may write its rules again")
	return cmd
}

// removeAll calls the functions in order until one fails, and returns what those called have removed.
func removeAll(steps ...func() ([]string, error)) (removed []string, err error) {
	for _, remove := range steps {
		more, err := remove()
		removed = append(removed, more...)
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// isAgentFile reports whether an agent leaves a file of this name in its folder: a snapshot, a last good
// configuration, a partial one of either, or the handover socket. Copies that an operator made have other
// names.
func isAgentFile(name string) bool {
	switch name {
	case "node-cache.snapshot", "last-good.yaml", "handover.sock":
		return true
	}
	return strings.HasPrefix(name, "node-cache.snapshot.tmp-") || strings.HasPrefix(name, ".last-good-")
}

// removeFiles removes agents' files from folders and returns their paths. Other files and the folders stay. A
// missing folder is empty.
func removeFiles(folders []string) (removed []string, err error) {
	for _, folder := range folders {
		entries, readErr := os.ReadDir(folder)
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("cleanup: %w", readErr))
		}
		for _, e := range entries {
			if !isAgentFile(e.Name()) || e.IsDir() {
				continue
			}
			path := filepath.Join(folder, e.Name())
			if removeErr := os.Remove(path); removeErr != nil {
				err = errors.Join(err, fmt.Errorf("cleanup: %w", removeErr))
				continue
			}
			removed = append(removed, "file "+path)
		}
	}
	return removed, err
}
