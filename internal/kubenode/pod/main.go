// SPDX-License-Identifier: Apache-2.0

// Command pod is what containers of a test's cluster run: the process that holds a pod, and a client that asks a DNS
// server over UDP and TCP all the time and counts.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(run(os.Args[1:])) //nolint:forbidigo // main may
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := errors.New("neither pause nor ask")
	switch {
	case len(args) == 1 && args[0] == "pause":
		pause(ctx)
		return 0
	case len(args) > 0 && args[0] == "ask":
		err = ask(ctx, args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// pause holds a pod's namespaces, and collects the processes in it that have lost their parents.
func pause(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			for pid := 1; pid > 0; {
				pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			}
		}
	}
}
