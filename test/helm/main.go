// SPDX-License-Identifier: Apache-2.0

// Command helm renders and checks the chart in the tests: the released module, unchanged.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"helm.sh/helm/v4/pkg/cmd"
)

func main() {
	command, err := cmd.NewRootCmd(os.Stdout, os.Args[1:], cmd.SetupLogging)
	if err != nil {
		slog.Error("starting", "error", err)
		os.Exit(1)
	}
	if err := command.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
