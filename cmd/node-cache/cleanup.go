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

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

func cleanupCommand() *cobra.Command {
	var file string
	var folders []string
	var force, stay bool
	cmd := &cobra.Command{
		Use:   "cleanup [--config FILE] [--folder FOLDER]... [--force] [--stay]",
		Short: "Take away what agents left on this node",
		Long: `Take away the rules and the link that agents left on this node: for the node of an
agent that was killed and will not come back, or that was uninstalled. Rules are
found whichever backend made them. Without a file the default name of the link
holds; with interface.kind lo the file is needed, because it names the addresses.
While an agent renews its lease nothing is touched, unless --force is given.
Snapshots, sockets and kept configurations in the folders given go too, if that
went well.
Exit code 0: nothing of an agent's is there any more; 1: something is.`,
		Args: usageArgs(cobra.MatchAll(cobra.NoArgs, func(*cobra.Command, []string) error { return named(folders) })),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := config.Default(config.Agent)
			if file != "" {
				var err error
				if cfg, err = config.Load(file, config.Agent); err != nil {
					return err
				}
			}
			removed, err := agent.Cleanup(cmd.Context(), &cfg, force)
			if err == nil {
				var files []string
				files, err = removeFiles(folders)
				removed = append(removed, files...)
			}
			for _, what := range removed {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "removed: %s\n", what)
			}
			if err == nil && len(removed) == 0 {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), "nothing of an agent's is here")
			}
			if err == nil && stay {
				<-cmd.Context().Done()
			}
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the agent's configuration `FILE`")
	cmd.Flags().StringArrayVar(&folders, "folder", nil, "a `FOLDER` that agents kept files in; may be given again")
	cmd.Flags().BoolVar(&stay, "stay", false, "when all is clean, wait for SIGTERM: for a DaemonSet, whose containers may not end")
	cmd.Flags().BoolVar(&force, "force", false, "also while an agent runs, which puts its rules back if it can")
	return cmd
}

// named refuses a folder without a name, as a variable of a script that is not set gives.
func named(folders []string) error {
	if slices.Contains(folders, "") {
		return errors.New("--folder names no folder")
	}
	return nil
}

// isLeft tells the names of files that agents leave in their folders: a snapshot and one that was being written, the
// configuration that worked last and one that was being written, the socket of the hand-over. A person's copy has another.
func isLeft(name string) bool {
	switch name {
	case "node-cache.snapshot", "last-good.yaml", "handover.sock":
		return true
	}
	return strings.HasPrefix(name, "node-cache.snapshot.tmp-") || strings.HasPrefix(name, ".last-good-")
}

// removeFiles removes the files of agents from folders, and tells which. What else is there stays, and so do the folders.
// A folder that is not there holds nothing.
func removeFiles(folders []string) (removed []string, err error) {
	for _, folder := range folders {
		entries, readErr := os.ReadDir(folder)
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("cleanup: %w", readErr))
		}
		for _, e := range entries {
			if !isLeft(e.Name()) || e.IsDir() {
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
