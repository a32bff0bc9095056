// SPDX-License-Identifier: Apache-2.0

// Command containerd is the container runtime of the tests' nodes, and with the first argument "ctr" its client.
package main

import (
	"context"
	"fmt"
	"os"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
	ctr "github.com/containerd/containerd/v2/cmd/ctr/app"
)

func main() {
	app, args := command.App(), os.Args
	if len(args) > 1 && args[1] == "ctr" {
		app, args = ctr.New(), args[1:]
	}
	if err := app.Run(context.Background(), args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", app.Name, err)
		os.Exit(1)
	}
}
