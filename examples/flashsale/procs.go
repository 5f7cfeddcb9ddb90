package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"time"
)

// A branch is an open shop, as the sale uses it. The shop runs in this process or in a child
// process.
type branch struct {
	url   string
	close func(context.Context) error
}

// openBranches opens one shop in this process, or several shops in other processes. When it
// returns an error, it also returns the shops that it has opened.
func openBranches(ctx context.Context, cfg shopConfig, procs int) ([]branch, error) {
	if procs == 1 {
		s, err := openShop(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return []branch{{s.url, s.close}}, nil
	}
	var branches []branch
	for range procs {
		b, err := startBranch(ctx, cfg)
		if err != nil {
			return branches, err
		}
		branches = append(branches, b)
	}
	return branches, nil
}

func closeBranches(ctx context.Context, branches []branch) error {
	errs := make([]error, len(branches))
	var wg sync.WaitGroup
	for i, b := range branches {
		wg.Go(func() { errs[i] = b.close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// branchVariable is the environment variable that makes this program a child process with one shop.
// Pipes connect the child to its parent:
//
//	stdin   a shopConfig; the end of the input closes the shop, even when the parent dies
//	stdout  the URL, when the shop is open
//	stderr  the reason, if the shop could not open
const branchVariable = "FLASHSALE_BRANCH"

func isBranch() bool { return os.Getenv(branchVariable) != "" }

// startBranch starts this program again as a child process with one shop. It returns when the shop
// is open.
func startBranch(ctx context.Context, cfg shopConfig) (branch, error) {
	program, err := os.Executable()
	if err != nil {
		return branch{}, err
	}
	child := exec.Command(program)
	child.Env = append(os.Environ(), branchVariable+"=1")
	var complaint bytes.Buffer
	child.Stderr = &complaint
	stdin, err := child.StdinPipe()
	if err != nil {
		return branch{}, err
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		return branch{}, err
	}
	if err := child.Start(); err != nil {
		return branch{}, err
	}
	stop := func(context.Context) error {
		_ = stdin.Close()
		kill := time.AfterFunc(10*time.Second, func() { _ = child.Process.Kill() })
		defer kill.Stop()
		if err := child.Wait(); err != nil {
			return fmt.Errorf("a shop in another process: %w: %s", err, strings.TrimSpace(complaint.String()))
		}
		return nil
	}
	if err := json.NewEncoder(stdin).Encode(cfg); err != nil {
		return branch{}, errors.Join(err, stop(ctx))
	}
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return branch{}, errors.Join(errors.New("a shop in another process did not open"), stop(ctx))
	}
	return branch{strings.TrimSpace(url), stop}, nil
}

// branchMain is the main function of a child process with one shop.
func branchMain(stdin io.Reader, stdout, stderr io.Writer) int {
	// Ctrl-C reaches parent and child, but the parent decides when the child must end.
	signal.Ignore(os.Interrupt)
	if err := runBranch(context.Background(), stdin, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	return 0
}

func runBranch(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var cfg shopConfig
	if err := json.NewDecoder(stdin).Decode(&cfg); err != nil {
		return fmt.Errorf("read what to sell: %w", err)
	}
	s, err := openShop(ctx, cfg)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, s.url); err != nil {
		return errors.Join(err, s.close(ctx))
	}
	_, _ = io.Copy(io.Discard, stdin) // waits until the parent closes the pipe
	return s.close(ctx)
}
