/* One thread removes one of two files, another changes the name in memory meanwhile. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static volatile int done;
static volatile char name[] = "a";

static void *change(void *none)
{
	while (!done) {
		name[0] = 'b';
		name[0] = 'a';
	}
	return none;
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, change, NULL);
	for (int i = 0; i < 300; i++) {
		close(creat("a", 0600));
		close(creat("b", 0600));
		unlink((const char *)name);
		putchar(access("a", F_OK) ? 'a' : 'b');
	}
	done = 1;
	putchar('\n');
	return 0;
}
